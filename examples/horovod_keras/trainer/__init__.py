"""A Horovod program for Keras 3 that runs as a job of several ranks."""

"""A hand-written Horovod training program that runs as a job of several ranks."""

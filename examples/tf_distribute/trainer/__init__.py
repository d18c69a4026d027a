"""A training program for TensorFlow's own strategies that runs as a job of several ranks."""

"""Evaluation of a job from outside: once, or following its training."""

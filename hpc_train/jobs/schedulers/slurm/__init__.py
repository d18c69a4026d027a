"""Slurm's queue."""

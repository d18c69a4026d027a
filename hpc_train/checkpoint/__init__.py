"""Checkpoints on disk: committed whole or not there."""

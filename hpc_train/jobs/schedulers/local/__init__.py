"""This machine's queue."""

"""The parts of checkpoint.py."""

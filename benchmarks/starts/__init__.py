"""The parts of start.py."""

"""The parts of overhead.py."""

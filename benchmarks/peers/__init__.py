"""The parts of overhead.py: the rivals' programs, how they and this package's jobs run, targets, the report's text."""

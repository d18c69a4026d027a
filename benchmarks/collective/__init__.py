"""The parts of collectives.py: what each rank runs, where ranks are placed, targets, the report's text."""

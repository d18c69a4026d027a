"""The parts of checkpoint.py: models, ours, competitors, cases, targets and the report's text."""

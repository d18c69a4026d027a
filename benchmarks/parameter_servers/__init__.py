"""The parts of parameter_server.py: the ranks' programs and how they start, cases, targets, the report's text."""

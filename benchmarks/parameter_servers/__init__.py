"""The parts of parameter_server.py: programs of the ranks, how they are started, cases, targets and the report's text."""

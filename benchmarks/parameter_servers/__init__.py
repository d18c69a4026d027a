"""The parts of parameter_server.py."""

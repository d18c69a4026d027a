"""Builds the environment of a checkout, before anything is installed: see __main__.py."""

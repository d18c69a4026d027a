"""Hooks, Keras callbacks, and those that are built in."""

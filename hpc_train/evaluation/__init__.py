"""Evaluation: when, of what, and what follows from it."""

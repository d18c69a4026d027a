"""The copy of a job's code."""

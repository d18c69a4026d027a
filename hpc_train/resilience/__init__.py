"""Signals and failures: a job ends in bounded time and reports why."""

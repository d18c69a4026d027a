"""What slow_rank.py runs, and how it reports."""

"""What staging.py measures."""

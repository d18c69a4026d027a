"""What pack.py measures."""

"""What map_reduce.py measures."""

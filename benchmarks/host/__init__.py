"""What host_work.py runs and reports."""

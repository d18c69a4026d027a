"""What studies.py runs and reports."""

"""What builtin_models.py runs and reports."""

"""What control_path.py runs and shows: a job without TensorFlow, its phases measured on each rank, the report."""

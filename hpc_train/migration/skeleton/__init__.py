"""job.yaml and model.py of a program: what its statements and settings become."""

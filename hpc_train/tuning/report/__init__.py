"""report.html of a study: how its trials went, in one file that needs nothing else."""

"""What a job-dir holds: its paths, and its one reader."""

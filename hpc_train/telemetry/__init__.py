"""What a job reports: metrics, status, progress, and the environment it ran in. Written by the chief alone."""

"""hpc-train doctor: whether this machine can run jobs, found out by trying."""

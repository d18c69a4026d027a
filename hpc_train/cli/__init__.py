"""hpc-train's commands, a file a group."""

"""Environment packs: one file of a Python environment, which each node of a job unpacks on its own disk."""

"""Which rows each rank reads at each step. Pure."""

"""Statistics of more data than one process reads: rows are mapped and reduced over all ranks."""

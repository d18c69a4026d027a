"""Copies of shards on a node's own disk or memory, from which its ranks read after the first pass."""

"""Shards written, found whole or not, and inspected."""

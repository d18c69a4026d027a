"""Ranks started, supervised, and how they ended."""

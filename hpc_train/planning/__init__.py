"""What ranks will hold and exchange, found out before a job is queued: from its model, without training it."""

MOST_RANKS = 1 << 16
"""More are not planned for."""

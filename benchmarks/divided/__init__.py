"""Models larger than a rank: what each of the ways costs and saves."""

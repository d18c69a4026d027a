"""Containers that ranks run in: what runs an image, what of the node is seen in it, and whether the job fits it."""

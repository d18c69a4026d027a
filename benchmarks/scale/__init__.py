"""Weak and strong scaling of the real training loop: what is trained, how it is measured, and the report."""

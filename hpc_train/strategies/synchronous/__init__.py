"""Synchronous training, with a chief that trains or a dedicated one."""

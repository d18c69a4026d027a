"""Synchronous training, with a chief that trains or a dedicated one."""

from __future__ import annotations

from hpc_train.strategies.synchronous.strategy import Synchronous

STRATEGY = Synchronous()

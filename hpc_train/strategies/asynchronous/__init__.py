"""Asynchronous training with parameter servers."""

from __future__ import annotations

from hpc_train.strategies.asynchronous.strategy import Asynchronous

STRATEGY = Asynchronous()

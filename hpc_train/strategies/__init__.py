"""The ways to train on many ranks: each a package, whose STRATEGY is one. See engine.strategy.Strategy."""

from __future__ import annotations

import importlib

from hpc_train.config.types import STRATEGIES
from hpc_train.engine.strategy import Strategy


def strategy_of(name: str) -> Strategy:
    """The strategy that `run.strategy` names. Local."""
    found: Strategy = importlib.import_module(STRATEGIES[name]).STRATEGY
    return found

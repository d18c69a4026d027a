"""Estimator: a model function with its parameters, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_train.config.specs import RunConfig
from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.errors import UserError
from hpc_train.lazy import keras


@dataclass(frozen=True)
class Estimator:
    """A model to be trained by `train_and_evaluate`.

    Args:
        model_fn: `(params: dict) -> keras.Model`, compiled. Its optimizer, losses, loss weights, metrics and
            regularisation losses are used as they are; the learning rate is never scaled behind its back.
        config: Where and how to run.
        params: Handed to `model_fn`.
        warm_start_from: Where a job without a checkpoint takes its first values from: a path, or WarmStartSettings.
    """

    model_fn: Callable[[dict[str, Any]], keras.Model]
    config: RunConfig
    params: Mapping[str, Any] = field(default_factory=dict)
    warm_start_from: str | Path | WarmStartSettings | None = None

    def __post_init__(self) -> None:
        if not callable(self.model_fn):
            raise UserError(f"model_fn must be a function (params) -> compiled keras.Model, not {self.model_fn!r}")
        if not isinstance(self.config, RunConfig):
            raise UserError(f"config must be a RunConfig, not {type(self.config).__name__}")
        if not isinstance(self.params, Mapping):
            raise UserError(f"params must be a dict, not {type(self.params).__name__}")
        if not isinstance(self.warm_start_from, str | Path | WarmStartSettings | None):
            raise UserError(
                f"warm_start_from must be a path or a WarmStartSettings, not {type(self.warm_start_from).__name__}"
            )

    @property
    def warm_start(self) -> WarmStartSettings | None:
        """`warm_start_from` as settings."""
        given = self.warm_start_from
        return WarmStartSettings(Path(given)) if isinstance(given, str | Path) else given

"""Estimator: a model function with its parameters, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hpc_train.arguments import check_type, checked_arguments, is_path, not_allowed
from hpc_train.config.estimator_arguments import ESTIMATOR, METHODS
from hpc_train.config.functions import check_model
from hpc_train.config.run_config import RunConfig
from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.errors import UserError
from hpc_train.lazy import keras


@checked_arguments
@dataclass(frozen=True)
class Estimator:
    """A model to be trained by `train_and_evaluate`.

    Args:
        model_fn: `(params: dict) -> keras.Model`, compiled, or without an argument where there are no params. Its
            optimizer, losses, loss weights, metrics and regularisation losses are used as they are; the learning rate
            is never scaled behind its back.
        config: Where and how to run. None: a RunConfig with its defaults, in a temporary folder.
        params: Handed to `model_fn`. None: none.
        warm_start_from: Where a job without a checkpoint takes its first values from: a path, or WarmStartSettings.

    Raises:
        UserError: One of them is of another kind, or `model_fn` has other arguments.
    """

    retired: ClassVar[Mapping[str, str]] = ESTIMATOR
    model_fn: Callable[..., keras.Model]
    config: RunConfig = field(default_factory=RunConfig)
    params: Mapping[str, Any] = field(default_factory=dict)
    warm_start_from: str | Path | WarmStartSettings | None = None

    def __post_init__(self) -> None:
        if self.config is None:
            object.__setattr__(self, "config", RunConfig())
        if self.params is None:
            object.__setattr__(self, "params", {})
        where = type(self).__name__
        check_type(where, "config", self.config, RunConfig, "an ht.RunConfig, as in ht.RunConfig('runs/mine')")
        check_type(where, "params", self.params, Mapping, "a dict")
        warm = self.warm_start_from
        if not (is_path(warm) or isinstance(warm, WarmStartSettings | None)):
            raise not_allowed(where, "warm_start_from", warm, "a path, an ht.WarmStartSettings, or None")
        try:
            check_model(self.model_fn, self.params)
        except ValueError as error:
            raise UserError(f"{where}: model_fn: {error}") from None

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            raise AttributeError(f"an Estimator of hpc_train has no {name}: {METHODS[name]}")
        raise AttributeError(f"'Estimator' object has no attribute {name!r}")

    @property
    def warm_start(self) -> WarmStartSettings | None:
        """`warm_start_from` as settings."""
        given = self.warm_start_from
        return WarmStartSettings(Path(given)) if isinstance(given, str | Path) else given

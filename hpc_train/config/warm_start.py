"""WarmStartSettings: from where a new job takes the first values of its model's variables."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.arguments import is_path, shown
from hpc_train.config.types import STRICT, Names
from hpc_train.config.validation import specification


@specification
@dataclass(frozen=True, config=STRICT)
class WarmStartSettings:
    """Which variables a new job takes from where, after tf.estimator.WarmStartSettings (TensorFlow 2.15 API).

    Args:
        ckpt_to_initialize_from: A job-dir (its newest checkpoint), one checkpoint's folder, a `.keras` file, a
            SavedModel's folder, or a checkpoint of TensorFlow: its prefix (`model.ckpt-1000`), one of its files, or
            the folder of an Estimator (its newest one). In a job file relative to the job file's folder.
        vars_to_warm_start: Regular expressions, each matched from the beginning of a variable's path (`re.match`, as
            Estimator did): the variables that any of them matches are taken. Non-trainable ones (batch-norm averages)
            are among them; the optimizer's and random states never.
        var_name_to_prev_var_name: Path of a variable here to its path there, where they differ. Names that end in `/`
            mean all variables below them, `/` alone means all.
    """

    ckpt_to_initialize_from: Path
    vars_to_warm_start: Names = (".*",)
    var_name_to_prev_var_name: dict[str, str] = field(default_factory=dict)

    @field_validator("ckpt_to_initialize_from", mode="before")
    @classmethod
    def _is_given(cls, path: Any) -> Any:
        if isinstance(path, str | Path) and not is_path(path):
            raise ValueError(
                f"{shown(path)} is not allowed; allowed: a job-dir, a checkpoint, a .keras file, a SavedModel, or a "
                "checkpoint of TensorFlow"
            )
        return path

    @field_validator("vars_to_warm_start")
    @classmethod
    def _are_regular_expressions(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                where = "" if error.pos is None else f" at character {error.pos + 1}"
                raise ValueError(f"{pattern!r} is no regular expression{where}: {error.msg}") from None
        return patterns

    @field_validator("var_name_to_prev_var_name")
    @classmethod
    def _name_like_for_like(cls, names: dict[str, str]) -> dict[str, str]:
        for here, there in names.items():
            if not here or not there:
                raise ValueError(f"{here!r}: {there!r} has an empty name")
            if here.endswith("/") != there.endswith("/"):
                raise ValueError(f"{here!r}: {there!r}: either both end in / (all variables below) or neither (one)")
        return names


def as_settings(value: Any) -> Any:
    """A path alone as the mapping that WarmStartSettings is made from; anything else as it is."""
    return {"ckpt_to_initialize_from": value} if isinstance(value, str | Path) else value


WarmStart = Annotated[WarmStartSettings | None, BeforeValidator(as_settings)]
"""The job file's `warm_start_from`: a path, or a mapping with the names of WarmStartSettings."""

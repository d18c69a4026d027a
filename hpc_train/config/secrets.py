"""Values that nobody but the job is to see: those of `resources.environment`, and `***` in their place. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpc_train.config.yaml_loader import read_value
from hpc_train.errors import UserError

MASK = "***"

Value = Callable[[str, Any], Any]
"""Gives the value to put in the place of a variable's, by its name and its value."""


def masked(environment: Mapping[str, Any]) -> dict[str, str]:
    """The variables of `environment`, without their values."""
    return dict.fromkeys(environment, MASK)


def masked_settings(settings: Sequence[str]) -> tuple[str, ...]:
    """Settings (`KEY=VALUE`) without the values of variables that they set under `resources.environment`."""
    return tuple(_replaced(setting, lambda name, value: MASK) for setting in settings)


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command, whose `--set` options are without the values of such variables."""
    found, option = [], "--set="
    for before, word in zip(["", *words], words, strict=False):
        is_option = word.startswith(option)
        settings = masked_settings([word.removeprefix(option)]) if is_option or before == "--set" else [word]
        found.append((option if is_option else "") + settings[0])
    return found


def restored_settings(settings: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """`masked_settings` undone, for variables that `environment` has."""
    restored = lambda name, value: environment.get(name, value) if value == MASK else value  # noqa: E731
    return tuple(_replaced(setting, restored) for setting in settings)


def _replaced(setting: str, value_of: Value) -> str:
    """`setting` with other values of variables, if it sets some."""
    key, equals, text = setting.partition("=")
    parts = key.split(".")
    if not equals or parts[0] != "resources" or (parts[1:] and parts[1] != "environment"):
        return setting
    try:
        value = read_value(text, key)
    except UserError:
        return f"{key}={json.dumps(MASK)}"  # nobody else will understand it, either
    if len(parts) > 2:
        return f"{key}={json.dumps(value_of(parts[2], value))}"
    environment = value if len(parts) == 2 else value.get("environment") if isinstance(value, dict) else None
    if not isinstance(environment, dict):
        return setting
    environment = {name: value_of(str(name), one) for name, one in environment.items()}
    return f"{key}={json.dumps(environment if len(parts) == 2 else {**value, 'environment': environment})}"

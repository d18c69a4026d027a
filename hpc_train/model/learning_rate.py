"""What an optimizer was made with, and its learning rate, of which Keras keeps a constant as a variable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hpc_train.checkpoint.format import COUNTER
from hpc_train.distributed.optimizer_variables import parts_of
from hpc_train.errors import UserError
from hpc_train.lazy import keras

LEARNING_RATE = "optimizer.learning_rate"
"""The key of the learning rate among settings; those of a schedule have dots after it."""
_RATES = re.compile(r"optimizer\.(.+\.)?learning_rate")
_NAME = re.compile(r"(^|/)learning_rate(#\d+)?$")
_NOT_SETTINGS = ("name", "module", "registered_name", "build_config")


def optimizer_settings(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Class and arguments of an optimizer as `model_fn` made it; with loss scaling, of the one inside. Local."""
    inner, scaling = optimizer, {}
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner, scaling = optimizer.inner_optimizer, optimizer.get_config()
        scaling = {key: scaling.get(key) for key in ("initial_scale", "dynamic_growth_steps")}
    try:
        config = inner.get_config()
    except Exception:  # one of the user's own, which says nothing of itself
        config = {}
    rate = constant_rate(optimizer)
    if rate is not None:
        config["learning_rate"] = float(rate.numpy())
    return {"class": type(inner).__name__, **_without_names(config), **scaling}


def constant_rate(optimizer: keras.optimizers.Optimizer) -> Any | None:
    """The variable of the learning rate; None for a schedule, a function, or an optimizer of several."""
    rate = getattr(optimizer, "learning_rate", None)
    return rate if isinstance(rate, keras.Variable) else None


def constant_rates(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables of the learning rates of several optimizers (MultiOptimizer); none of a single one."""
    parts = parts_of(getattr(optimizer, "inner_optimizer", optimizer))
    rates = [constant_rate(part) for part in parts] if len(parts) > 1 else []
    return [rate for rate in rates if rate is not None]


def rate_of(optimizer: keras.optimizers.Optimizer) -> float | None:
    """The learning rate of the next update; None of an optimizer that has several (MultiOptimizer)."""
    rate = getattr(optimizer, "learning_rate", None)
    return None if rate is None else float(rate)


def with_cycle(optimizer: keras.optimizers.Optimizer | None, steps: int, name: str) -> keras.optimizers.Optimizer:
    """An optimizer like one of a constant learning rate, whose rate follows cycles of so many updates; see RunConfig.

    It is made anew: Keras can give the old one a schedule, but then exports it no more.

    Raises:
        UserError: The model `name` has no single constant rate, or an optimizer that cannot be made anew.
    """
    rate = constant_rate(optimizer)
    if optimizer is None or rate is None:
        given = type(getattr(optimizer, "_learning_rate", None)).__name__
        what = "several optimizers, or none" if given == "NoneType" else f"a learning rate of its own course, {given}"
        raise UserError(
            f"run.learning_rate_cycle: {name} has {what}; give its optimizer a number, with which each cycle "
            "begins, or leave `learning_rate_cycle` out"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner, config = with_cycle(optimizer.inner_optimizer, steps, name), optimizer.get_config()
        return type(optimizer)(inner, **{key: config[key] for key in ("initial_scale", "dynamic_growth_steps")})
    begin = float(str(rate.numpy()))  # 0.001, not what float32 makes of it
    schedule = keras.optimizers.schedules.CosineDecayRestarts(begin, steps, t_mul=1.0)
    try:
        made = type(optimizer).from_config({**optimizer.get_config(), "learning_rate": schedule})
    except Exception as error:  # of a class of the user's own
        raise UserError(
            f"run.learning_rate_cycle: the {type(optimizer).__name__} of {name} cannot be made again from its "
            f"get_config ({error}); give it a schedule, such as CosineDecayRestarts, in place of `learning_rate_cycle`"
        ) from None
    for key in vars(optimizer).keys() - vars(made).keys():  # what calls have set, as exclude_from_weight_decay does
        setattr(made, key, getattr(optimizer, key))
    return made


def are_rates(key: str) -> bool:
    """Whether a setting is the constant learning rate of an optimizer, or of one among several."""
    return _RATES.fullmatch(key) is not None


def with_rate(
    saved: Mapping[str, np.ndarray], names: Iterable[str], rate: tuple[str, np.ndarray] | None, renewed: bool
) -> dict[str, np.ndarray]:
    """A checkpoint's variables of the optimizer, for one that has a constant learning rate or has not. Pure.

    Args:
        names: Of the variables of the optimizer here. rate: name and value of its learning rate, None for a schedule.
        renewed: Whether the rate here takes the place of the checkpoint's.
    """
    here = [_bare(name) for name in names]
    fitted = [(name, array) for name, array in saved.items() if not is_rate(name) or _bare(name) in here]
    if rate is not None:
        places = [place for place, (name, _) in enumerate(fitted) if _bare(name) == _bare(rate[0])]
        if not places:
            fitted.insert(here.index(_bare(rate[0])), rate)
        elif renewed:
            name, array = fitted[places[0]]
            fitted[places[0]] = name, rate[1].astype(array.dtype).reshape(array.shape)
    return dict(fitted)


def with_rates(saved: Mapping[str, np.ndarray], rates: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
    """A checkpoint's variables of an optimizer that has several rates, with those at these places in it. Pure."""
    return {
        name: rates[place].astype(array.dtype) if place in rates and is_rate(name) else array
        for place, (name, array) in enumerate(saved.items())
    }


def is_rate(name: str) -> bool:
    """Whether a variable of this path is a learning rate."""
    return _NAME.search(name) is not None


def _bare(name: str) -> str:
    return re.sub(COUNTER, "", name)


def _without_names(config: Any, key: str = "") -> Any:
    if isinstance(config, Mapping):
        return {key: _without_names(value, key) for key, value in config.items() if key not in _NOT_SETTINGS}
    if key == "learning_rate" and isinstance(config, float):
        return float(str(np.float32(config)))  # 0.001, not what float32 makes of it
    return config

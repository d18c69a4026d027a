"""The point of a fork: its parent's, with each value changed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpc_train.config.tune.parameter import Parameter, Value, key_of
from hpc_train.config.tune.population import Population
from hpc_train.config.tune.space import Point, Space, share


def explored(space: Space, parent: Point, population: Population, seed: int, trial: int) -> dict[str, Value]:
    """The point of the fork that is trial number `trial`.

    A number is its parent's multiplied by one of the factors, and stays in its range; a choice becomes one of its
    neighbours in the list. A value that none of that changes is drawn anew, as one that the parent has not, and as each
    is with the probability `resample`. Like what is drawn for other trials, it depends on the seed, the trial's number
    and the key alone.
    """
    point: dict[str, Value] = {}
    for key in space.order:
        if not space.matters(key, point):
            continue
        parameter, near = space.parameters[key], list[Value]()
        if key in parent and share(seed, trial, f"{key}/resample") >= population.resample:
            near = _near(parameter, parent[key], population.factors)
        if near:
            point[key] = near[math.floor(share(seed, trial, f"{key}/factor") * len(near))]
        else:
            point[key] = parameter.at(share(seed, trial, key))
    return point


def _near(parameter: Parameter, value: Value, factors: Sequence[float]) -> list[Value]:
    """The values that a fork may have in place of `value`, which is none of them."""
    if parameter.choice is not None:
        place = list(map(key_of, parameter.choice)).index(key_of(value))
        return [*parameter.choice[max(0, place - 1) : place], *parameter.choice[place + 1 : place + 2]]
    found = [_multiplied(parameter, value, factor) for factor in factors if factor != 1]
    return [other for other in found if other != value]


def _multiplied(parameter: Parameter, value: Value, factor: float) -> Value:
    if parameter.int is None:
        return parameter.rounded(value * factor)
    low, high = parameter.int
    changed = round(value * factor)
    if changed == value:
        changed += 1 if (factor > 1) == (value >= 0) else -1
    return min(max(changed, low), high)

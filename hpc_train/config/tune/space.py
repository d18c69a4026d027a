"""The space of a study: its keys, which of them matter when, and points in it. Pure.

A point is a mapping of the keys that matter there to their values. What is drawn for a key depends on the seed, the
number of the trial and the key alone, so that another key changes nothing about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpc_train.config.tune.parameter import Parameter, Value, key_of
from hpc_train.config.validation import wrong_at
from hpc_train.errors import did_you_mean

Point = Mapping[str, Value]
MOST_OF_A_GRID = 100_000
"""Trials."""


@dataclass(frozen=True)
class Space:
    """Keys of the job file, with what each may be.

    Raises:
        ValidationError: Where `when` names a key that is none of the space, a value that this never has, or one that
            depends on the key itself; and where it is never true.
    """

    parameters: Mapping[str, Parameter]

    def __post_init__(self) -> None:
        for key, parameter in self.parameters.items():
            for other, wanted in parameter.when.items():
                at = (key, "when", other)
                if other not in self.parameters:
                    hint = did_you_mean(other, self.parameters)
                    raise wrong_at(at, wanted, f"{other!r} is no key of the space; {hint}allowed: {self._others(key)}")
                if self.parameters[other].is_continuous:
                    text = f"{other} is never drawn to be exactly that; give it as a `choice`, or, for a grid, `points`"
                    raise wrong_at(at, wanted, text)
                for value in wanted_values(wanted):
                    if not self.parameters[other].allows(value):
                        allowed = self.parameters[other].describe()
                        raise wrong_at(at, wanted, f"{key_of(value)} is no value of {other}; allowed: {allowed}")
        for key in self.parameters:
            if (circle := self._circle(key)) is not None:
                text = f"matters only when it matters: {' when '.join(circle)}; leave one `when` out"
                raise wrong_at((key, "when"), None, text)
        for key in self.order:
            for other in (other for other, values in self._needed(key).items() if not values):
                text = f"is never true: no value of {other} is left by it and by the keys that it depends on"
                raise wrong_at((key, "when"), None, text)

    def _others(self, key: str) -> str:
        return ", ".join(other for other in self.parameters if other != key) or "none; there is no other key"

    def _circle(self, key: str) -> tuple[str, ...] | None:
        paths: list[tuple[str, ...]] = [(key,)]
        seen = {key}
        while paths:
            path = paths.pop()
            for other in self.parameters[path[-1]].when:
                if other == key:
                    return (*path, key)
                if other not in seen:
                    seen.add(other)
                    paths.append((*path, other))
        return None

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The keys, each behind those that it depends on; otherwise as in the file."""
        found: dict[str, None] = {}

        def add(key: str) -> None:
            for other in self.parameters[key].when if key not in found else ():
                add(other)
            found.setdefault(key)

        for key in self.parameters:
            add(key)
        return tuple(found)

    def matters(self, key: str, point: Point) -> bool:
        """Whether `key` does where the keys before it, in `order`, have the values of `point`."""
        when = self.parameters[key].when
        return all(
            other in point and key_of(point[other]) in map(key_of, wanted_values(wanted))
            for other, wanted in when.items()
        )

    def drawn(self, seed: int, trial: int, given: Point | None = None) -> dict[str, Value]:
        """The point of a trial, drawn at random; with the values that are `given`."""
        point: dict[str, Value] = {}
        for key in self.order:
            if self.matters(key, point):
                known = given is not None and key in given
                point[key] = given[key] if known and given else self.parameters[key].at(share(seed, trial, key))
        return point

    def grid(self) -> Iterator[dict[str, Value]]:
        """All points of the grid; those of the first key change last. ValueError where one of the keys has no end."""
        yield from self._grid(self.order, {})

    def _grid(self, keys: tuple[str, ...], point: dict[str, Value]) -> Iterator[dict[str, Value]]:
        if not keys:
            yield point
            return
        key, *rest = keys
        if not self.matters(key, point):
            yield from self._grid(tuple(rest), point)
            return
        for value in self.parameters[key].grid():
            yield from self._grid(tuple(rest), {**point, key: value})

    def mistake_in(self, point: Point) -> tuple[str, str] | None:
        """What is wrong with values that a user gives for a trial: the key, and how."""
        for key, value in point.items():
            if key not in self.parameters:
                return key, f"{key!r} is no key of the space; {did_you_mean(key, self.parameters)}".rstrip("; ")
            if not self.parameters[key].allows(value):
                return key, f"{key_of(value)} is not allowed; allowed: {self.parameters[key].describe()}"
        for key in point:
            if not self.matters(key, point):
                others = ", ".join(self.parameters[key].when)
                return key, f"does not matter there, by its `when`; leave it out, or give {others} a value, too"
        return None

    def examples(self) -> Iterator[tuple[str, dict[str, Value]]]:
        """Points that try each value of a choice and both ends of a range, and the key that each is there for.

        A key that matters in some cases alone is tried in the first of these; the others have their first value.
        """
        for key in self.order:
            around = {other: values[0] for other, values in self._needed(key).items()}
            for value in self.parameters[key].samples():
                yield key, self._completed({**around, key: value})

    def _needed(self, key: str) -> dict[str, list[Value]]:
        """The values that the keys which `key` depends on, also through others, may have where it matters."""
        found: dict[str, list[Value]] = {}
        for one in reversed(self.order):
            for other, wanted in self.parameters[one].when.items() if one == key or one in found else ():
                allowed = {key_of(value): value for value in wanted_values(wanted)}
                before = found.get(other, allowed.values())
                found[other] = [value for value in before if key_of(value) in allowed]
        return found

    def _completed(self, given: Point) -> dict[str, Value]:
        point: dict[str, Value] = {}
        for key in self.order:
            if self.matters(key, point):
                point[key] = given[key] if key in given else self.parameters[key].samples()[0]
        return point


def wanted_values(wanted: Any) -> list[Value]:
    """The values that `when` gives for a key: one, or a list of them."""
    return list(wanted) if isinstance(wanted, list | tuple) else [wanted]


def share(seed: int, trial: int, key: str) -> float:
    """A number from 0 to below 1 that looks random, the same wherever it is asked for."""
    digest = hashlib.sha256(f"{seed}/{trial}/{key}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / (1 << 48)

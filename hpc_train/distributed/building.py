"""Whether a model is built by what divides it among ranks; those that a program builds itself are whole on each."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hpc_train.distributed.launch_env import launch_place

log = logging.getLogger(__name__)

_building: ContextVar[bool] = ContextVar("building", default=False)
_warned: list[str] = []


@contextmanager
def building() -> Iterator[None]:
    """A context in which the model of a job is built: for training, an evaluation, an export or a plan."""
    token = _building.set(True)
    try:
        yield
    finally:
        _building.reset(token)


def warn_of_whole(layer: str) -> None:
    """Warns once, on one rank of a node, where a program of several ranks makes a `layer` that jobs divide."""
    place = launch_place(os.environ)
    if _building.get() or _warned or place.size == 1 or place.local_rank:
        return
    _warned.append(layer)
    log.warning(
        f"layer {layer} is whole on each of the {place.size} ranks: layers of ht.parallel are divided in jobs, which "
        "call the function that makes the model (`model:` in a job file, or ht.train_and_evaluate; with run.mesh), not "
        "in a program with a loop of its own"
    )

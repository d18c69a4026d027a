"""The whole model on the chief, of one of which ranks hold parts: what is exported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from hpc_train.data.memory import available_bytes
from hpc_train.distributed.layout import BLOCK_BYTES, lowest_holders
from hpc_train.distributed.share import Share, share_of
from hpc_train.distributed.tensors import dtype_of
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.model.one_rank import as_one_rank
from hpc_train.telemetry.units import size


class WholeModel:
    """A model like `model`, whole on the chief, which has its weights after each `refresh`.

    Args:
        world: The ranks that hold `model`. model: of which this rank holds its parts.
        build: Makes another one. Called on the chief.

    Attributes:
        model: On the chief; None on the other ranks.

    Raises:
        UserError: The chief has no memory for it.
    """

    def __init__(self, world: World, model: keras.Model, build: Callable[[], keras.Model]) -> None:
        self._world, self._parts = world, model

        def whole() -> keras.Model | None:
            if not world.is_chief:
                return None
            needed, there = _bytes_needed(model), available_bytes()
            if needed > there:
                raise UserError(
                    f"exporters: the whole model, of which ranks hold parts, needs {size(needed)} on the chief, which "
                    f"has {size(there)}; leave the exporters out, and export a checkpoint where there is more memory "
                    "(hpc-train export), or give the chief's node more (resources.memory)"
                )
            with as_one_rank():
                return build()

        self.model = world.each(whole)

    def refresh(self) -> None:
        """Gives the whole model the weights that ranks have now. Collective."""
        wholes = self.model.variables if self.model is not None else [None] * len(self._parts.variables)
        for variable, whole in zip(self._parts.variables, wholes, strict=True):
            if (share := share_of(variable)) is not None:
                self._bring_together(np.ravel(np.asarray(variable)), share, whole)
            elif whole is not None:
                whole.assign(variable)

    def _bring_together(self, own: np.ndarray, share: Share, whole: Any) -> None:
        """Puts a variable together on the chief, to which the lowest rank with each part sends it."""
        (lowest,) = lowest_holders(self._world, [share])
        sends = bool(lowest[self._world.rank] == self._world.rank)
        senders = self._world.split(0 if sends else 1)
        senders.on_wait = self._world.on_wait
        if sends:
            self._gather(senders, own, share, whole)
        senders.free()

    @staticmethod
    def _gather(senders: World, own: np.ndarray, share: Share, whole: Any) -> None:
        shares = [Share(**{**found, "shape": share.shape}) for found in senders.gather(asdict(share)) or []]
        longest = -senders.lowest(-own.size)
        array = None if whole is None else np.empty(share.shape, dtype_of(whole))
        step = max(1, BLOCK_BYTES // own.itemsize)
        for begin in range(0, longest, step):
            block = np.zeros(min(step, longest - begin), own.dtype)
            sent = own[begin : begin + step]
            block[: sent.size] = sent
            gathered = senders.gather_arrays(block)
            if array is None or gathered is None:
                continue
            for found, values in zip(shares, gathered, strict=True):
                count = min(values.size, found.size - begin)
                if count > 0:
                    box = array[(slice(None),) * found.axis + (slice(found.start, found.stop),)]
                    box.flat[found.first + begin : found.first + begin + count] = values[:count]
        if whole is not None:
            whole.assign(array)


def _bytes_needed(model: keras.Model) -> int:
    """For the whole model, and its largest variable once more, which is brought together before it is assigned."""
    shapes = [((share_of(v) or Share(tuple(v.shape))).shape, dtype_of(v)) for v in model.variables]
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
    return sum(sizes) + max(sizes)

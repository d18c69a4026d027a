"""Which part of a whole variable a rank holds: along one axis, or by its elements counted flat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Averaged = Literal["world", "data", "alone"]
"""Over which ranks the gradient of a variable is averaged: all, those of the data axis, or none (it is whole)."""


@dataclass(frozen=True)
class Share:
    """A part of an array: what lies from `start` to `stop` along `axis`, and of that the elements `first` to `last`.

    Attributes:
        shape: Of the whole array, which has at least one axis.
        first, last: Counted through the flat box; `last` None: to its end.
    """

    shape: tuple[int, ...]
    axis: int = 0
    start: int = 0
    stop: int | None = None
    first: int = 0
    last: int | None = None

    @property
    def box(self) -> tuple[int, ...]:
        """Shape of what lies from `start` to `stop`."""
        stop = self.shape[self.axis] if self.stop is None else self.stop
        return (*self.shape[: self.axis], stop - self.start, *self.shape[self.axis + 1 :])

    @property
    def size(self) -> int:
        """Elements held."""
        return (math.prod(self.box) if self.last is None else self.last) - self.first

    @property
    def held(self) -> tuple[int, ...]:
        """Shape of what is held: the box, or flat where that is cut."""
        return self.box if self.size == math.prod(self.box) else (self.size,)

    def of(self, whole: np.ndarray) -> np.ndarray:
        """This part of `whole`, in the shape `held`; a view where it can be."""
        cut = whole[(slice(None),) * self.axis + (slice(self.start, self.stop),)]
        return cut if self.held == self.box else cut.reshape(-1)[self.first : self.last]

    def narrowed(self, first: int, last: int) -> Share:
        """Of this share, the elements `first` to `last` as it holds them."""
        return Share(self.shape, self.axis, self.start, self.stop, self.first + first, self.first + last)


def set_share(variable: Any, share: Share, averaged: Averaged) -> None:
    """Notes that the Keras `variable` is `share` of one that has another shape in a model on one rank."""
    assert tuple(variable.shape) == share.held, f"{variable.path}: {variable.shape} is not {share.held}"
    variable._hpc_train_share = share
    variable._hpc_train_averaged = averaged


def share_of(variable: Any) -> Share | None:
    """What `set_share` has noted; None: each rank holds it whole."""
    found: Share | None = getattr(variable, "_hpc_train_share", None)
    return found


def averaged_over(variable: Any) -> Averaged:
    """Over which ranks its gradient is averaged."""
    found: Averaged = getattr(variable, "_hpc_train_averaged", "world")
    return found

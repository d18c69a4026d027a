"""The mesh of ranks: along its data axis rows are divided, along its model axis the layers of the model. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mesh:
    """`data` times `model` ranks that train, of which this one is `rank`.

    Ranks of a model group, which hold one copy of the model among them, have numbers one after the other, so that a
    launcher puts them on one node where they fit.

    Attributes:
        data: How many copies of the model train, each on rows of its own. model: among how many ranks each copy is
            divided.
        rank: This one's number among those that train, from 0.
    """

    data: int = 1
    model: int = 1
    rank: int = 0

    @property
    def size(self) -> int:
        """Ranks that train."""
        return self.data * self.model

    @property
    def data_index(self) -> int:
        """Which rows this rank reads: the part with this number, of `data`."""
        return self.rank // self.model

    @property
    def model_index(self) -> int:
        """Which part of sharded layers this rank holds, of `model`."""
        return self.rank % self.model

    @property
    def model_group(self) -> tuple[int, ...]:
        """Ranks that hold the other parts of this rank's copy, with it; all read the same rows."""
        begin = self.data_index * self.model
        return tuple(range(begin, begin + self.model))

    @property
    def data_group(self) -> tuple[int, ...]:
        """Ranks that hold the same part of other copies, with this one."""
        return tuple(range(self.model_index, self.size, self.model))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """All model groups and data groups, the same on all ranks."""
        models = [tuple(range(d * self.model, (d + 1) * self.model)) for d in range(self.data)]
        return [*models, *(tuple(range(m, self.size, self.model)) for m in range(self.model))]

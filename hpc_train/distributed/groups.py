"""The collectives of the ranks that train: of all of them, and of each axis of their mesh."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.distributed.collectives import Collectives, OneRank
from hpc_train.distributed.mesh import Mesh


@dataclass(frozen=True)
class Groups:
    """What the ranks that train exchange by.

    Attributes:
        every: All of them. data: those that hold the same part of a copy of the model, and read other rows. model:
            those that hold the other parts of this rank's copy, and read the same rows.
    """

    mesh: Mesh
    every: Collectives
    data: Collectives
    model: Collectives

    @staticmethod
    def of(collectives: Collectives, mesh: Mesh | None = None) -> Groups:
        """Those of `mesh`; None: of ranks that each hold the whole model. Collective.

        Args:
            collectives: Of all ranks that train, started with the groups of `mesh`.
        """
        if mesh is None or mesh.model == 1:
            every = Mesh(collectives.ranks, 1, collectives.rank)
            return Groups(every, collectives, collectives, OneRank())
        own: dict[tuple[int, ...], Collectives] = {}
        for ranks in mesh.groups:  # all ranks make all groups, in one order
            if (group := collectives.group(ranks)) is not None:
                own[ranks] = group
        return Groups(mesh, collectives, own[mesh.data_group], own[mesh.model_group])

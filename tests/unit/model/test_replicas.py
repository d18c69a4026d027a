"""Which ranks differ from those that hold the same."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_train.distributed.world import World
from hpc_train.model.replicas import Differing, differing, first_differing

ALL, PAIRS, OWN = (np.array(lowest) for lowest in ([0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("lowest", "digests", "found"),
    [
        (ALL, [7, 7, 7, 7], None),
        (ALL, [7, 7, 8, 7], Differing((2,), "b", 0, True)),
        (ALL, [8, 7, 7, 7], Differing((0,), "b", 1, True)),
        (ALL, [7, 8, 9, 6], Differing((1, 2, 3), "b", 0, False)),
        (PAIRS, [7, 8, 7, 8], None),
        (PAIRS, [7, 8, 7, 7], Differing((3,), "b", 1, False)),
        (OWN, [7, 8, 9, 6], None),
    ],
)
def test_ranks_are_compared_with_those_of_the_same(lowest: np.ndarray, digests: list[int], found: object) -> None:
    assert first_differing([[1, digest] for digest in digests], [("a", ALL), ("b", lowest)]) == found


def test_one_rank_is_like_itself() -> None:
    assert differing(World.alone(), {"a": 1, "b": 2}, {"b": np.array([0])}) is None

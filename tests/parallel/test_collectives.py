"""Each operation of Collectives and its gradient on real ranks, for all of them and for groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import IN_SOAK, REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "collectives.py"


@pytest.mark.parametrize(
    ("carrier", "ranks"),
    [
        *(("horovod", ranks) for ranks in (1, 2, 4)),
        *(("mpi", ranks) for ranks in (1, 2, 4)),
        ("mpi-gpu", 3),
        *(pytest.param(carrier, 3, marks=IN_SOAK) for carrier in ("horovod", "mpi")),
    ],
)
def test_operations_and_gradients_are_those_of_numpy(carrier: str, ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAM, carrier], tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks

"""Models whose layers are divided among ranks, against whole ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "mesh.py"


@pytest.mark.parametrize(("carrier", "ranks"), [("mpi", 1), ("mpi", 2), ("horovod", 2), ("mpi", 4)])
def test_divided_models_train_as_whole_ones(carrier: str, ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAM, carrier], tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks * sum(ranks % model == 0 for model in (1, 2, 4))

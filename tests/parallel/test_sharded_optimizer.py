"""Optimizers of which each rank holds a part, against whole ones, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "sharded_optimizer.py"


@pytest.mark.parametrize(("ranks", "carrier"), [(2, "mpi"), (2, "horovod"), (3, "mpi"), (4, "horovod")])
def test_sharded_optimizers_do_what_whole_ones_do(tmp_path: Path, ranks: int, carrier: str) -> None:
    done = run_ranks(ranks, [PROGRAM, carrier], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks

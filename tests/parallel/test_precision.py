"""Compression, loss scale, pieces and clipping, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "precision.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of all rows."""
    folder = tmp_path_factory.mktemp("alone")
    done = run_ranks(0, [PROGRAM, folder, "alone"], folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_do_what_one_process_with_all_rows_does(folder: Path, ranks: int) -> None:
    done = run_ranks(ranks, [PROGRAM, folder], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks

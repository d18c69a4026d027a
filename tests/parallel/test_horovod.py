"""hpc_train.horovod on real ranks, each against what one process computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, SOAK, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "horovod_names.py"


@pytest.mark.parametrize("ranks", [0, 2, 3] if SOAK > 1 else [0, 3])
def test_each_name_does_on_all_ranks_what_one_process_does(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAM, tmp_path], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is fine") == max(1, ranks)

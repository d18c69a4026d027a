"""ShardedEmbedding on real ranks: what it trains is what one process would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "sharded_embedding.py"


@pytest.mark.parametrize(
    ("ranks", "how"), [(1, ["mpi"]), (2, ["horovod"]), (3, ["mpi", "light"]), (4, ["mpi"]), (4, ["horovod", "light"])]
)
def test_a_table_in_parts_trains_as_a_whole_one(ranks: int, how: list[str], tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAM, *how], tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_evaluate_it_together_though_their_batches_are_uneven(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [REPOSITORY / "tests" / "parallel" / "programs" / "sharded_evaluation.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("each rank evaluates all rows, with its part of the model" in done.stderr) == (ranks > 1)
    assert "one rank evaluates all rows" not in done.stderr
    assert done.stdout.count("is fine") == ranks


def test_jobs_come_to_the_same_as_with_a_whole_table_and_go_on_with_other_ranks(tmp_path: Path) -> None:
    done = run_ranks(
        4, [REPOSITORY / "tests" / "parallel" / "programs" / "sharded_embedding_jobs.py", tmp_path], tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" fine") == 7

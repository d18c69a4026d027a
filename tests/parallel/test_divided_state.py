"""Checkpoints of a state of which ranks hold parts are those of one rank, whatever happens meanwhile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from tests.support import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "divided_state.py"


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_saved_and_restored_at_any_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    """By columns, rows, meshes and flat pieces: the same bytes; with errors of the disk and NaN in between."""
    done = run_ranks(ranks, [PROGRAM, tmp_path, "all"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d) is fine", done.stdout)) == [str(rank) for rank in range(ranks)]


def test_a_job_goes_back_stops_and_goes_on(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, tmp_path, "job"], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("victim", ["chief", "other"])
def test_a_rank_that_is_killed_in_a_save_leaves_the_checkpoint_before(victim: str, tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, tmp_path, f"kill-{victim}"], tmp_path)
    assert done.returncode != 0
    manager = CheckpointManager(tmp_path / "killed", Retention(0))
    assert (manager.find_whole().step, manager.steps()) == (1, [1])
    assert len(manager.left_over()) == 1


def test_a_save_needs_some_blocks_of_memory_whatever_ranks_hold(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, tmp_path, "memory"], tmp_path)
    assert done.returncode == 0, done.stderr

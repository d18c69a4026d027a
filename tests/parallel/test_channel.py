"""Messages and arrays between two ranks whose main threads do something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "channel.py"


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_and_arrays_both_ways(ranks: int, tmp_path: Path) -> None:
    """In order; long texts at once both ways; 50 MB into given memory, once there is room."""
    done = run_ranks(ranks, [PROGRAM, "fine"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d) is fine", done.stdout)) == [str(rank) for rank in range(ranks)]


def test_errors_reach_the_main_thread_and_nothing_hangs(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, "errors"], tmp_path)
    assert sorted(re.findall(r"rank (\d) is fine", done.stdout)) == ["0", "1"], done.stderr
    assert "Traceback" not in done.stderr

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import run_ranks

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("ranks", [0, 1, 2, 3, 4])
def test_collectives(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAMS / "world.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    size = max(ranks, 1)
    assert sorted(re.findall(r"rank (\d) of (\d) is fine", done.stdout)) == [(str(r), str(size)) for r in range(size)]

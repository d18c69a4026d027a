"""What models ask of ranks: rows of all, moments of all, whole steps or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "models.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_do_together_what_one_process_does(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(0 if ranks == 1 else ranks, [PROGRAM, tmp_path / "jobs"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("found"))
    found = json.loads(line.removeprefix("found "))
    assert found.pop("steps") == 1.0
    assert found.pop("updates") == [1, 1]
    for name in ("uneven pieces", "sparse gradients as in Keras"):
        if ranks == 2:
            assert found.pop(name) == ""
    found.pop("uneven pieces", None)
    for name, difference in found.items():
        assert difference is not None, name
        assert difference < 2e-5, name

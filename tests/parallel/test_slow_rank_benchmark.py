"""slow_rank.py runs end to end; `make soak` on two idle cores reaches its numbers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program

SCRIPT = REPOSITORY / "benchmarks" / "slow_rank.py"
SOAK = int(os.environ.get("SOAK", "1"))


def test_both_ways_run(tmp_path: Path) -> None:
    done = run_program([sys.executable, str(SCRIPT), "--quick", "--out", "out", "--dir", "."], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    ways = ["one rank slowed", "equal ranks beside other work"]
    assert [record["config"]["way"] for record in records if "way" in record["config"]] == ways
    assert "is named" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="make soak: an idle machine of two cores")
def test_its_numbers_are_reached(tmp_path: Path) -> None:
    done = run_program([sys.executable, str(SCRIPT), "--strict", "--out", "out", "--dir", "."], tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr

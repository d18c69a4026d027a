"""model_parallel.py runs end to end: layers exchange what is computed, and other ranks restore the same variables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY, SOAK, run_program

SCRIPT = REPOSITORY / "benchmarks" / "model_parallel.py"


def run(folder: Path, *cases: str) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """The records of each case, and the report."""
    words = ["--cases", *cases, "--quick", "--out", "out", "--dir", "."]
    done = run_program([sys.executable, str(SCRIPT), *words], folder, timeout=1800)
    assert done.returncode == 0 and "not measured  " not in done.stdout, done.stdout + done.stderr
    records = [json.loads(line) for line in (folder / "out" / "records.jsonl").read_text().splitlines()]
    found = {case: [record for record in records if record["config"]["part"] == case] for case in cases}
    return found, (folder / "out" / "report.md").read_text()


def test_bytes_and_restored_variables_are_measured(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "block", "restore")
    one, two = found["block"]
    assert (one["ranks"], two["ranks"], two["baseline"]) == (1, 2, "one rank")
    assert two["config"]["counted"] == {part: [n] for part, n in two["config"]["computed"].items()}
    assert two["config"]["planned"] == sum(two["config"]["computed"].values())
    assert {"compute", "exchange in layers"} <= set(two["config"]["split"]), "parts by difference may be below 0"
    assert [r["config"]["mesh"] for r in found["restore"]] == ["1x2", "1x1"]
    for record in found["restore"]:
        assert record["config"]["others"] == []
        assert record["value"] == record["config"]["variables"] > record["config"]["of_optimizer"] > 0


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="make soak: six ranks with tables of up to 500 MB")
def test_a_table_beyond_the_memory_of_one_rank_trains_on_four(tmp_path: Path) -> None:
    found, report = run(tmp_path, "bounded")
    free, refused, divided = (record["config"] for record in found["bounded"])
    assert free["trained"] and free["limit"] is None
    assert divided["trained"], divided["ended"]
    assert refused["limit"] == divided["limit"]
    assert refused["trained"] == (refused["limit"] is None), refused["ended"]
    assert "private memory" in report or "a memory cgroup" in report

"""model_parallel.py runs end to end: layers exchange what is computed, and other ranks restore the same variables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support import REPOSITORY, run_program


def test_bytes_limits_and_restored_variables_are_measured(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "model_parallel.py"
    words = ["--cases", "block", "bounded", "restore", "--quick", "--out", "out", "--dir", "."]
    done = run_program([sys.executable, str(script), *words], tmp_path, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    found = {part: [r for r in records if r["config"]["part"] == part] for part in ("block", "bounded", "restore")}
    one, two = found["block"]
    assert (one["ranks"], two["ranks"], two["baseline"]) == (1, 2, "one rank")
    assert two["config"]["counted"] == {part: [n] for part, n in two["config"]["computed"].items()}
    assert two["config"]["planned"] == sum(two["config"]["computed"].values())
    assert {"compute", "exchange in layers"} <= set(two["config"]["split"]), "parts by difference may be below 0"
    free, refused, divided = (r["config"] for r in found["bounded"])
    assert free["trained"] and free["limit"] is None
    assert divided["trained"], divided["ended"]
    assert refused["limit"] == divided["limit"]
    assert refused["trained"] == (refused["limit"] is None), refused["ended"]
    assert [r["config"]["mesh"] for r in found["restore"]] == ["1x2", "1x1"]
    for record in found["restore"]:
        assert record["config"]["others"] == []
        assert record["value"] == record["config"]["variables"] > record["config"]["of_optimizer"] > 0
    report = (tmp_path / "out" / "report.md").read_text()
    assert "private memory" in report or "a memory cgroup" in report

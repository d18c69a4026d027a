"""host_work.py runs end to end: all ways are timed, the package's also by part."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support import REPOSITORY, run_program


def test_all_ways_are_timed_and_parts_are_those_of_a_step(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "host_work.py"
    done = run_program([sys.executable, str(script), "--quick", "--out", "out", "--dir", "."], tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    by_way = {record["config"]["way"]: record for record in records}
    assert list(by_way) == ["Keras fit", "0 in flight", "1 in flight", "by part"]
    parts = by_way["by part"]["config"]["parts_us"]
    assert set(parts) == {
        *("loop", "feed", "watchdog", "hooks", "rates and shares", "records, checkpoints"),
        *("TensorFlow's call", "the report's numbers"),
    }
    assert all(us > 0 for us in parts.values()), parts
    assert "TensorFlow's call" in (tmp_path / "out" / "report.md").read_text()


def test_the_work_of_another_checkout_is_timed_beside_it(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "host_work.py"
    words = [sys.executable, str(script), "--quick", "--out", "out", "--dir", "."]
    done = run_program([*words, "--against", str(REPOSITORY)], tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert [(r["config"]["way"], r["baseline"]) for r in records][-2:] == [
        ("this checkout", "the other checkout"),
        ("the other checkout", None),
    ]
    assert "Before and after" in (tmp_path / "out" / "report.md").read_text()
    wrong = run_program([*words, "--against", "nowhere"], tmp_path, timeout=100)
    assert wrong.returncode == 2
    assert "--against: nowhere is no checkout" in wrong.stderr

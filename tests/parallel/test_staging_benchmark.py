"""staging.py runs end to end: from a source that is slow, where there can be one, staged and not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support import REPOSITORY, run_program


def test_the_wait_of_each_pass_is_told_staged_and_not(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "staging.py"
    done = run_program([sys.executable, str(script), "--quick", "--out", "out", "--dir", "."], tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    passes = [(record["config"]["way"], record["config"]["pass"]) for record in records]
    assert sorted(set(passes)) == [(way, k) for way in ("read from the source", "stage: node") for k in (1, 2, 3)]
    assert all(0 <= record["value"] < 1 for record in records)
    assert " of 8 shards" in done.stdout + done.stderr
    assert "Input wait of the second pass, staged" in (tmp_path / "out" / "report.md").read_text()
    assert not list((tmp_path).glob("staging-*"))

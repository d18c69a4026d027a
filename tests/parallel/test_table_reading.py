"""table_reading.py runs end to end: pyarrow, schemas on one rank and on two, shards of a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support import REPOSITORY, run_program


def test_schemas_and_shards_are_compared_with_reading_alone(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "table_reading.py"
    done = run_program([sys.executable, str(script), "--quick", "--out", "out", "--dir", "."], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    ways = ["pyarrow.csv", "schema, 1 rank", "schema, 2 ranks", "shard"]
    assert [record["config"]["way"] for record in records if "way" in record["config"]] == ways
    assert [record["config"]["memory of"] for record in records if "memory of" in record["config"]] == ways
    assert all(record["value"] > 0 for record in records)
    assert "2 ranks / one rank" in (tmp_path / "out" / "report.md").read_text()

"""map_reduce.py runs end to end: statistics on one rank and on two, layers adapted by us and by Keras."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support import REPOSITORY, run_program


def test_ranks_are_compared_with_one_and_adapted_layers_with_keras(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "map_reduce.py"
    done = run_program([sys.executable, str(script), "--quick", "--out", "out", "--dir", "."], tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    found = {(record["config"]["what"], record["config"]["way"]): record for record in records}
    assert list(found) == [
        *((what, way) for what in ("moments", "statistics") for way in ("1 rank", "2 ranks")),
        *(("adapt", way) for way in ("FeatureSpace.adapt", "ht.adapt")),
    ]
    assert all(record["value"] > 0 for record in records)
    assert [record["baseline"] for record in records] == [None, "1 rank", None, "1 rank", None, "FeatureSpace.adapt"]
    assert "2 ranks / one rank" in (tmp_path / "out" / "report.md").read_text()

"""pack.py runs end to end, with an environment that is small: from a pack ranks ask nothing of its folder."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program


@pytest.mark.skipif(shutil.which("strace") is None and os.environ.get("CI") != "true", reason="needs strace")
def test_calls_from_an_environment_and_from_its_pack(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "pack.py"
    done = run_program([sys.executable, str(script), "--quick", "--out", "out", "--dir", "."], tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    calls = {record["case"]: record for record in records if record["unit"] == "calls"}
    assert len(calls) == 4
    for case, record in calls.items():
        assert record["config"]["all"] > 500, case  # some hundred files are read wherever they are
        assert (record["value"] < 10) == ("its pack" in case), case
    assert [record["ranks"] for record in records if record["unit"] == "s" and record["baseline"]] == [2]
    assert "Calls on the shared folder" in (tmp_path / "out" / "report.md").read_text()
    assert not list(tmp_path.glob("pack-*"))

"""start.py runs end to end: launched, killed and started again, beside Keras alone and beside another checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support import REPOSITORY, run_program


def test_starts_and_restarts_are_timed_by_phase(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "start.py"
    words = [sys.executable, str(script), "--quick", "--out", "out", "--dir", "."]
    done = run_program(words, tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    found = {(record["config"]["what"], record["config"]["way"]): record for record in records}
    first, again = "to the first step", "from SIGKILL to the next step"
    assert list(found) == [(first, "this checkout"), (first, "Keras fit, one process"), (again, "this checkout")]
    own = found[first, "this checkout"]
    phases = own["config"]["phases"]
    assert list(phases) == [
        *(
            "launch",
            "Python",
            "imports",
            "MPI",
            "data",
            "TensorFlow",
            "model",
            "exchange",
            "job-dir",
            "trace",
            "first step",
        )
    ]
    assert all(secs > 0 for secs in phases.values())
    assert sum(phases.values()) <= own["value"] + 0.1, "a process's start is known to a hundredth"
    assert "| TensorFlow |" in (tmp_path / "out" / "report.md").read_text()
    wrong = run_program([*words[:2], "--against", "nowhere"], tmp_path, timeout=100)
    assert wrong.returncode == 2
    assert "--against: nowhere is no checkout" in wrong.stderr

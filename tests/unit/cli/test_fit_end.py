"""How hpc-train fit ends: with the model that there is, or with why there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_train.cli.fit import _show
from hpc_train.jobs.fit.folder import FitFolder
from hpc_train.outcome import EXIT_FAILED


def test_without_an_export_it_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = FitFolder(tmp_path / "a")
    job_dir = folder.job_dir.path
    (job_dir / "export" / "best").mkdir(parents=True)
    failed = {"state": "succeeded", "export_errors": [{"exporter": "best", "step": 3, "error": "ValueError: no"}]}
    (job_dir / "status.json").write_text(json.dumps(failed))
    assert _show(folder) == EXIT_FAILED
    said = capsys.readouterr()
    assert said.err == "hpc-train: error: there is no model to predict with: ValueError: no\n"
    assert "model:" not in said.out

    (job_dir / "export" / "final" / "7").mkdir(parents=True)
    assert _show(folder) == 0
    assert f"model:  {job_dir / 'export' / 'final'}\n" in capsys.readouterr().out

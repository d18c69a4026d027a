from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from rich.console import Console

from hpc_train.monitoring.files import write_json
from hpc_train.monitoring.progress import Rate, TrainingProgress, is_live
from hpc_train.monitoring.status import StatusFile, mark_failed
from hpc_train.resilience.failure import FailureReport


def test_json_is_replaced_whole_and_always_valid(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": math.nan, "all": [1.5, math.inf, {"x": "y"}]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": None, "all": [1.5, None, {"x": "y"}]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_failure_has_the_last_word_in_the_status(tmp_path: Path) -> None:
    report = FailureReport(tmp_path, "run")
    status = StatusFile(tmp_path, report.path, step=0)
    status.update(state="running", step=1)
    error = ValueError("broken")
    text = report.claim(3, error)
    assert text is not None
    assert text.startswith("rank 3 failed:\n")
    assert report.claim(1, error) is None, "only the first tells"
    mark_failed(tmp_path, 3, error)
    status.update(state="succeeded", step=2)
    written = json.loads((tmp_path / "status.json").read_text())
    assert (written["state"], written["step"]) == ("failed", 1)
    assert written["error"] == {"rank": 3, "message": "ValueError: broken"}


def test_a_failure_is_told_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    text = FailureReport(tmp_path / "missing", "run").claim(0, ValueError("broken"))
    assert text is not None
    assert "ValueError: broken" in text
    assert "not written" in text


def test_rate_leaves_out_the_first_step_and_what_is_not_training() -> None:
    now = 0.0
    rate = Rate(lambda: now)
    assert (rate.mean, rate.secs_for(5)) == (0, None)
    for secs in (100, 2, 2):
        now += secs
        rate.step(10)
    assert rate.mean == 5
    rate.pause()
    now += 1000
    rate.resume()
    now += 4
    rate.step(12)
    assert rate.mean == 4
    assert rate.secs_for(3) == 8


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_TRAIN_PROGRESS", "lines")
    with TrainingProgress(Console(width=100), 0, 25, 10) as progress:
        for step in range(1, 26):
            progress.update(step, 0.5, 1234.4, None if step > 20 else 0.004, 61.0, last=step == 25)
        progress.say("[bold]as it is[/bold]")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 10/25  loss 0.5000  1,234 examples/s  input wait 0.4%  0:01:01 left"
    assert [line.split()[1] for line in lines[:-1]] == ["10/25", "20/25", "25/25"]
    assert lines[2] == "step 25/25  loss 0.5000  1,234 examples/s  0:01:01 left"
    assert lines[-1] == "[bold]as it is[/bold]"


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_TRAIN_PROGRESS", "bar")
    console = Console(width=100, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with TrainingProgress(console, 0, 20, 10) as progress:
        progress.update(20, 0.25, 1234, 0.5, 0, last=True)
    text = console.export_text()
    assert "20/20" in text
    assert "loss 0.2500" in text
    assert "1,234 examples/s  input wait 50.0%" in text


def test_where_a_bar_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_live({"HPC_TRAIN_PROGRESS": "bar"})
    assert not is_live({"HPC_TRAIN_PROGRESS": "lines"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert is_live({})
    # Below mpirun every rank has a terminal; the launcher here is pytest's parent, which is no mpirun in a terminal.
    monkeypatch.setattr("os.readlink", lambda path: "/tmp/job.out")
    assert not is_live({"OMPI_COMM_WORLD_SIZE": "2"})
    monkeypatch.setattr("os.readlink", lambda path: "/dev/pts/3")
    assert is_live({"OMPI_COMM_WORLD_SIZE": "2"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert not is_live({})

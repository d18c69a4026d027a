"""How the training of a job is seen from outside."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_train.evaluation.standalone import job_watcher
from hpc_train.evaluation.standalone.job_watcher import JobWatcher


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def standing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any = None, lock: bool = True, **status: Any
) -> list[Any]:
    """How training stands now, after a minute and after three, where its lock is not touched; and how often asked."""
    clock, asked = Clock(), []
    monkeypatch.setattr(job_watcher, "time", clock)
    (tmp_path / "status.json").write_text(json.dumps(status))
    if lock:
        (tmp_path / "lock.json").write_text("{}")

    def ask(_: Path) -> Any:
        asked.append(clock.now)
        return answer

    job, found = JobWatcher(tmp_path, print, ask), []
    for secs in (0, 60, 120):
        clock.now += secs
        found.append(job.look()[0])
    return [*found, len(asked)]


def test_the_status_tells_how_training_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def status_of(**status: Any) -> list[Any]:
        return standing(tmp_path, monkeypatch, **status)

    assert status_of(state="succeeded") == ["ended", "ended", "ended", 0]
    assert status_of(state="cancelled") == ["ended", "ended", "ended", 0]
    assert status_of(state="stopped", job_id="1") == ["away", "away", "away", 2]
    assert status_of(state="requeued", job_id="1") == ["away", "away", "away", 2]
    assert status_of(state="queued", job_id="1") == ["awaited", "awaited", "awaited", 2]
    assert status_of() == ["awaited", "awaited", "awaited", 0]
    assert JobWatcher(tmp_path / "none", print, lambda _: None).look() == ("awaited", [])


def test_a_failed_job_has_ended_once_its_chief_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert standing(tmp_path, monkeypatch, state="failed") == ["running", "ended", "ended", 0]
    (tmp_path / "lock.json").unlink()
    assert standing(tmp_path, monkeypatch, lock=False, state="failed") == ["ended", "ended", "ended", 0]


def test_a_job_in_a_queue_is_asked_after_only_when_its_lock_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "lost", "its queue does not know it"
    assert standing(tmp_path, monkeypatch, lost, state="running", job_id="7") == ["running", "lost", "lost", 2]
    assert standing(tmp_path, monkeypatch, None, state="running", job_id="7") == ["running", "running", "running", 2]


def test_a_job_of_another_machine_is_lost_after_a_long_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert standing(tmp_path, monkeypatch, state="running", host="far") == ["running", "running", "lost", 3]


def test_a_lock_that_is_touched_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(job_watcher, "time", clock)
    (tmp_path / "status.json").write_text(json.dumps({"state": "running", "job_id": "7"}))
    (tmp_path / "lock.json").write_text("{}")
    job = JobWatcher(tmp_path, print, lambda _: pytest.fail("there is no need to ask"))
    for beat in range(10):
        os.utime(tmp_path / "lock.json", ns=(beat, time.time_ns() + beat))
        clock.now += 20
        assert job.look()[0] == "running"

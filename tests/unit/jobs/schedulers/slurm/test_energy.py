"""The energy that Slurm's accounting shows of a job, and what `hpc-train describe` makes of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hpc_train.jobs.inspect import inspect_job, with_queue_energy
from hpc_train.jobs.record.status import QueueState
from hpc_train.jobs.schedulers.slurm import energy
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue
from hpc_train.jobs.schedulers.slurm.energy import joules_of, parse_energy
from hpc_train.jobs.tables import description
from tests.unit.jobs.submissions import a_submission


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7|900\n7.batch|300\n7.extern|450\n7.0|450\n", 450.0),
        ("7|900\n7.batch|450\n7.0|450\n", None),  # each of these has the nodes
        ("17.extern|450\n7_1.extern|3\n", None),
        ("7.extern|0\n", None),
        ("7.extern|\n", None),
        ("7.extern|18446744073709551614\n", None),  # Slurm's NO_VAL64
        ("7.extern|4.5K\n", None),
        ("", None),
        ("7+0|1\n7+0.batch|2\n7+0.extern|450\n7+1|5\n7+1.extern|4500\n7+1.0|9\n7+0.0|9\n", 4950.0),  # two components
        ("7+0|1\n7+0.extern|450\n7+1|5\n7+1.0|9\n", None),  # one of them does not tell
        ("7+0.extern|450\n7+1.extern|0\n7+2.extern|3\n", None),
        ("17+0.extern|450\n7+1x.extern|3\n", None),
    ],
)
def test_a_node_is_counted_once(text: str, expected: float | None) -> None:
    assert parse_energy(text, "7") == expected


def test_tasks_of_arrays() -> None:
    assert parse_energy("7_3|1\n7_3.extern|5\n", "7_3") == 5.0


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(slurm_queue, "seen", lambda *_: QueueState("ended"))
    return folder


def answers(folder: Path, script: str) -> None:
    (folder / "sacct").write_text(f'#!/bin/sh\necho "$@" >>{folder}/calls\n{script}\n')
    (folder / "sacct").chmod(0o755)


def job_with(folder: Path, **status: object) -> Path:
    job_dir = folder / "a"
    job_dir.mkdir(exist_ok=True)
    a_submission(backend="slurm", job_id="7").save(job_dir)
    (job_dir / "status.json").write_text(json.dumps({"state": "succeeded", "job_id": "7", **status}))
    return job_dir


def test_a_job_that_was_not_measured(programs: Path, tmp_path: Path) -> None:
    answers(programs, "echo '7|900'; echo '7.extern|4500'")
    job_dir = job_with(tmp_path, energy={"not_measured": "no counters"})
    found = with_queue_energy(inspect_job(job_dir))
    assert found.energy == {"not_measured": "no counters", "queue_joules": 4500.0}
    Console(file=(text := io.StringIO()), width=200).print(description(found))
    assert "4.5 kJ, as its queue has counted its nodes" in text.getvalue()
    (call,) = (programs / "calls").read_text().splitlines()
    assert call.split() == ["--noheader", "--parsable2", "--jobs=7", "--format=JobID,ConsumedEnergyRaw"]


def shown(job_dir: Path) -> str:
    Console(file=(text := io.StringIO()), width=200).print(description(with_queue_energy(inspect_job(job_dir))))
    return text.getvalue()


def test_both_figures_are_shown_where_some_nodes_were_not_measured(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(programs, "echo '7.extern|4500'")
    nodes = [{"host": "a", "joules": 30.0, "covers": "GPUs"}, {"host": "b", "covers": "GPUs"}]
    job_dir = job_with(tmp_path, energy={"joules": 30.0, "complete": False, "nodes": nodes})
    assert "30 J (GPUs); incomplete: of 1 of 2 nodes" in shown(job_dir)
    assert "4.5 kJ, as its queue has counted its nodes" in shown(job_dir)
    assert "may be missing" not in shown(job_dir)
    monkeypatch.setattr(slurm_queue, "seen", lambda *_: QueueState("ended", requeues=1))
    job_dir = job_with(tmp_path, energy=None, restarts=1, restart_reason="a node was lost")
    assert "from their allocation to its end; nodes that were lost may be missing" in shown(job_dir)


def test_what_shares_an_allocation_is_not_given_all_of_it(programs: Path, tmp_path: Path) -> None:
    answers(programs, "echo '7.extern|4500'")
    job_dir = job_with(tmp_path, energy={"not_measured": "no counters"})
    a_submission(backend="slurm", job_id="6").save(job_dir)  # 7 is the allocation of a later launch by hand
    assert "4.5 kJ" not in shown(job_dir)
    (job_dir / "submission.json").unlink()
    assert inspect_job(job_dir).job_id == "7"
    assert "4.5 kJ" not in shown(job_dir)
    assert not (programs / "calls").exists()


def test_others_are_not_asked_about(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(programs, "echo '7.extern|4500'")
    found = inspect_job(job_with(tmp_path, energy={"joules": 3.0, "complete": True}))
    assert with_queue_energy(found) == found
    with monkeypatch.context() as patch:
        patch.setattr(slurm_queue, "seen", lambda *_: QueueState("running"))
        found = inspect_job(job_with(tmp_path, state="running"))
        assert not found.has_ended
        assert with_queue_energy(found) == found
    a_submission(backend="local", job_id="7").save(tmp_path / "a")
    found = inspect_job(tmp_path / "a")
    assert with_queue_energy(found) == found
    assert not (programs / "calls").exists()


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo '7.extern|4500'; exit 1", "echo off >&2", "exec sleep 1000"],
)
def test_what_fails_tells_nothing(programs: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    answers(programs, script)
    if "sleep" in script:
        monkeypatch.setattr(energy, "ASK_SECS", 0.2)
    assert joules_of("7") is None
    assert joules_of("--all") is None
    (programs / "sacct").unlink()
    monkeypatch.setenv("PATH", str(programs))
    assert joules_of("7") is None

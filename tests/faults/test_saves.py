"""A save that is killed at any moment, or meets an error: the checkpoint before it or the new one is there, whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from tests.faults.support import Injector, assert_is_snapshot, leftovers, snapshot_of
from tests.ranks import train
from tests.support import Job, run_program, variables

MakeJob = Callable[..., Job]
PROGRAMS = Path(__file__).parent / "programs"

WRITING = ("open", "write", "fsync", "rename", "mkdir", "truncate")


def prepared(folder: Path, count: int, *steps: int) -> list[Path]:
    """So many folders with the checkpoints of `steps`, each in a parent of its own name."""
    first = folder / "prepared"
    if not first.exists():
        manager = CheckpointManager(first, Retention(0))
        for step in steps:
            manager.save(snapshot_of(step))
    made = len(list(folder.iterdir()))
    copies = [folder / f"n{n:03d}" / "checkpoints" for n in range(made, made + count)]
    for copy in copies:
        shutil.copytree(first, copy)
    return copies


def saves(
    injector: Injector, keep: int, step: int, folders: list[Path], rules: list[str]
) -> list[tuple[int, dict[str, Any]]]:
    """Exit status and words of a save of `step` in each folder, under `rules`."""
    program = [sys.executable, str(PROGRAMS / "saves.py"), str(keep), str(step), *map(str, folders)]
    done = run_program(program, folders[0].parents[1], **injector.env(*rules))
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [folder for folder, _, _ in results] == [str(folder) for folder in folders]
    return [(status, said) for _, status, said in results]


def calls_of_a_save(injector: Injector, folder: Path, keep: int, step: int) -> list[str]:
    """The system calls that a save makes, by their kind."""
    rules = [f"{calls}:/{folder.parent.name}/:1:*:sleep=0" for calls in ("any", "read")]
    assert saves(injector, keep, step, [folder], rules) == [(0, {"notes": []})]
    return [call for call, _, _ in injector.struck()]


@pytest.mark.parametrize(
    ("before", "step", "keep"),
    [((10,), 20, 5), ((10, 20), 20, 5), ((10, 20), 30, 1)],
    ids=["a new one", "one in the place of another", "one that makes others go"],
)
def test_killed_before_each_system_call_of_a_save(
    injector: Injector, memory_folder: Path, before: tuple[int, ...], step: int, keep: int
) -> None:
    calls = calls_of_a_save(injector, *prepared(memory_folder, 1, *before), keep, step)
    count = sum(call != "read" for call in calls)
    assert count > 15, calls
    folders = prepared(memory_folder, count)
    rules = [f"any:/{folder.parent.name}/:{n}:kill" for n, folder in enumerate(folders, 1)]
    results = saves(injector, keep, step, folders, rules)
    assert [status for status, _ in results] == [-9] * count
    restored, times_left = [], 0
    for folder in folders:
        manager = CheckpointManager(folder, Retention(keep))
        found = manager.find_whole()
        assert found.step in (before[-1], step), f"{folder}: {found}"
        assert not found.damaged, found
        restored.append(found.step)
        times_left += bool(leftovers(folder))
        manager.clean()
        assert not leftovers(folder)
        assert manager.find_whole() == found, "cleaning up takes nothing away"
        assert_is_snapshot(manager.load(found.step), found.step)
        manager.save(snapshot_of(step))
        assert_is_snapshot(manager.load(step), step)
    assert times_left > 10
    assert restored == sorted(restored), "once a new one is there, it stays"
    assert restored[-1] == step
    if step not in before:
        assert restored[0] == before[-1]


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EIO"])
def test_a_lasting_error_at_each_system_call_of_a_save(injector: Injector, memory_folder: Path, name: str) -> None:
    """EIO is tried again, a full disk is told at once; either way nothing is left but what was there."""
    calls = calls_of_a_save(injector, *prepared(memory_folder, 1, 10), 5, 20)
    cases = [(call, n) for call in WRITING for n in range(1, calls.count(call) + 1)]
    folders = prepared(memory_folder, len(cases))
    rules = [f"{call}:/{f.parent.name}/:{n}:*:{name}" for (call, n), f in zip(cases, folders, strict=True)]
    results = saves(injector, 5, 20, folders, rules)
    failed = set()
    for (call, n), folder, (status, said) in zip(cases, folders, results, strict=True):
        case, manager = f"{call} {n}: {said}", CheckpointManager(folder, Retention(5))
        if said == {"notes": []}:
            assert manager.find_whole().step == 20, case
            continue
        failed.add(call)
        assert status == 0, f"{case}: died of signal {-status}"
        assert "raised" not in said, case
        number, message, filename = said["error"]
        assert number == getattr(errno, name), case
        assert str(folder) in filename, case
        assert os.strerror(number) in message, case
        assert len(said["notes"]) == (5 if name == "EIO" else 0), case
        assert call == "open" or not leftovers(folder), case  # a folder that can't be opened can't be emptied
        found = manager.find_whole()
        assert found.step in (10, 20), f"{case}: {found}"
        assert not found.damaged, f"{case}: {found}"
        assert_is_snapshot(manager.load(found.step), found.step)
    assert failed >= {"open", "write", "fsync", "rename", "mkdir"}


def test_an_error_that_passes_at_each_system_call_of_a_save(injector: Injector, memory_folder: Path) -> None:
    calls = calls_of_a_save(injector, *prepared(memory_folder, 1, 10), 5, 20)
    cases = [(call, n) for call in (*WRITING, "read") for n in range(1, calls.count(call) + 1)]
    folders = prepared(memory_folder, len(cases))
    rules = [f"{call}:/{f.parent.name}/:{n}:2:ESTALE" for (call, n), f in zip(cases, folders, strict=True)]
    results = saves(injector, 5, 20, folders, rules)
    told = set()
    for (call, n), folder, (status, said) in zip(cases, folders, results, strict=True):
        case = f"{call} {n}: {said}"
        assert (status, set(said)) == (0, {"notes"}), case
        for note in said["notes"]:
            told.add(call)
            assert f"[Errno {errno.ESTALE}] {os.strerror(errno.ESTALE)}" in note, case
            assert str(folder) in note, case
            assert "trying again in" in note, case
        manager = CheckpointManager(folder, Retention(5))
        assert not leftovers(folder), case
        assert_is_snapshot(manager.load(20), 20)
    assert told >= {"open", "write", "fsync", "rename", "mkdir", "read"}


PHASES = {
    "before it": ("mkdir:/.step-{}.*.tmp:1:kill", False),
    "in the middle of state.h5": ("write:/.step-{}.*/state.h5:3:kill", False),
    "before the manifest": ("open:/.step-{}.*/manifest.json:1:kill", False),
    "before the rename": ("rename:/.step-{}.*.tmp:1:kill", False),
    "after the rename": ("rename:/.step-{}.*.tmp:1:kill-after", True),
}
"""Where the writer of a checkpoint is killed: the rule, with a place for the step, and whether the new one is there."""


def assert_same_variables(job: Job, other: Path, step: int) -> None:
    ours, theirs = variables(job.job_dir, step), variables(other, step)
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert value.tobytes() == theirs[name].tobytes(), name


def test_a_job_killed_in_every_phase_of_a_save_loses_nothing(make_job: MakeJob, injector: Injector) -> None:
    """Each start is killed in its second save, so that it also shows what the start before it left."""
    job = make_job(train={"max_steps": 70}, eval={"start_delay_secs": 1000})
    whole = job.folder / "whole"
    assert train(job, 0, whole).returncode == 0
    checkpoints, newest = job.job_dir / "checkpoints", 0
    for phase, (rule, is_there) in PHASES.items():
        killed_at = newest + 20
        done = train(job, 0, **injector.env(rule.format(f"{killed_at:08d}")))
        assert done.returncode == -9, f"{phase}: {done.stdout}{done.stderr}"
        assert len(injector.struck()) == 1, phase
        if newest:
            assert f"going on from step {newest} " in done.stdout, f"{phase}: {done.stdout}"
        left = leftovers(checkpoints)
        assert len(left) == (0 if is_there or phase == "before it" else 1), f"{phase}: {left}"
        assert all(f".step-{killed_at:08d}." in name for name in left), f"{phase}: what was left before was cleaned up"
        newest = killed_at if is_there else killed_at - 10
        assert CheckpointManager(checkpoints, Retention(5)).find_whole().step == newest, phase
    done = train(job, 0, TF_ACCESS_TOKEN="hush-hush", HPC_TRAIN_NOTE="out in the open")
    assert done.returncode == 0, done.stderr
    assert f"going on from step {newest} " in done.stdout
    assert not leftovers(checkpoints)
    assert_same_variables(job, whole, 70)

    noted = json.loads((job.job_dir / "environment.json").read_text())["environment"]
    assert noted["HPC_TRAIN_NOTE"] == "out in the open"
    files = [path for path in job.job_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hush-hush" in path.read_bytes()]
    assert job.job_dir.stat().st_mode & 0o777 == 0o700
    assert f"tensorboard --logdir {job.job_dir} --host localhost" in done.stdout


def test_two_ranks_whose_chief_is_killed_in_a_save(make_job: MakeJob, injector: Injector) -> None:
    job = make_job(train={"max_steps": 30}, eval={"start_delay_secs": 1000})
    whole = job.folder / "whole"
    assert train(job, 2, whole).returncode == 0
    rule, _ = PHASES["before the rename"]
    done = train(job, 2, **injector.env(rule.format("00000020"), rank=0))
    assert done.returncode == 137, done.stdout + done.stderr
    assert len(injector.struck()) == 1
    done = train(job, 2)
    assert done.returncode == 0, done.stderr
    assert "going on from step 10 " in done.stdout
    assert not leftovers(job.job_dir / "checkpoints")
    assert_same_variables(job, whole, 30)

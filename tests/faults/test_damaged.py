"""Damaged checkpoints are noticed, told, set aside, and the newest whole one is used."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from tests.faults.support import Injector, assert_is_snapshot, snapshot_of
from tests.ranks import train
from tests.support import REPOSITORY, Job, run_program, variables

MakeJob = Callable[..., Job]

once_for_all = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def manager(memory_folder: Path) -> CheckpointManager:
    """Of a folder with the whole checkpoints of steps 10 and 20."""
    manager = CheckpointManager(memory_folder / "checkpoints", Retention(5))
    for step in (10, 20):
        manager.save(snapshot_of(step))
    return manager


def flip_bit(path: Path, position: int) -> None:
    """Turns one bit of a file, counted from its start."""
    with open(path, "r+b") as file:
        file.seek(position // 8)
        byte = file.read(1)[0]
        file.seek(position // 8)
        file.write(bytes([byte ^ 1 << position % 8]))


@once_for_all
@given(st.data())
def test_a_bit_flipped_anywhere_in_the_state_is_noticed(manager: CheckpointManager, data: st.DataObject) -> None:
    state = manager.path(20) / "state.h5"
    position = data.draw(st.integers(0, 8 * state.stat().st_size - 1))
    flip_bit(state, position)
    try:
        found = manager.find_whole()
        assert found.step == 10
        assert [step for step, _ in found.damaged] == [20]
        assert str(state) in found.damaged[0][1]
        assert "do not match their digest" in found.damaged[0][1]
    finally:
        flip_bit(state, position)
    assert manager.find_whole().step == 20


@once_for_all
@given(st.data())
def test_a_bit_flipped_in_the_manifest_is_noticed_or_means_nothing(
    manager: CheckpointManager, data: st.DataObject
) -> None:
    manifest, before = manager.path(20) / "manifest.json", manager.check(20, digests=True)
    position = data.draw(st.integers(0, 8 * manifest.stat().st_size - 1))
    flip_bit(manifest, position)
    try:
        found = manager.find_whole()
        if found.step == 20:
            assert manager.check(20, digests=True) == before
        else:
            assert found.step == 10
            assert str(manifest) in found.damaged[0][1]
    finally:
        flip_bit(manifest, position)


@once_for_all
@given(st.data())
def test_a_file_of_another_length_is_noticed(manager: CheckpointManager, data: st.DataObject) -> None:
    path = manager.path(20) / data.draw(st.sampled_from(["state.h5", "manifest.json"]))
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 3))])
    assert manager.find_whole().step == 10
    path.write_bytes(whole + b"\0" * data.draw(st.integers(1, 10_000)))
    assert manager.find_whole().step == 10
    path.write_bytes(whole)
    assert manager.find_whole().step == 20


def test_what_else_makes_a_checkpoint_no_whole_one(manager: CheckpointManager) -> None:
    def swap(path: Path) -> None:
        shutil.copytree(manager.path(10), path, dirs_exist_ok=True)

    def empty(path: Path) -> None:
        for file in path.iterdir():
            file.unlink()

    damages: list[tuple[Callable[[Path], object], str]] = [
        (lambda path: (path / "manifest.json").unlink(), "manifest.json: missing"),
        (lambda path: (path / "state.h5").unlink(), "state.h5: missing"),
        (empty, "manifest.json: missing"),
        (lambda path: (path / "manifest.json").write_text("{}"), "manifest.json: "),
        (lambda path: (path / "manifest.json").write_text("[1]"), "manifest.json: cannot be understood"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff" * 300), "manifest.json: cannot be understood"),
        (lambda path: (path / "manifest.json").write_text("[" * 100_000), "manifest.json: cannot be understood"),
        (swap, "is of step 10"),
    ]
    good = shutil.copytree(manager.path(20), manager.path(20).parent / "good")
    for count, (damage, said) in enumerate(damages, 1):
        damage(manager.path(20))
        found = manager.find_whole()
        assert found.step == 10
        assert said in found.damaged[0][1]
        aside = manager.put_aside(20)
        assert aside.name == ("step-00000020.damaged" if count == 1 else f"step-00000020.damaged-{count}")
        assert manager.find_whole() == type(found)(10, ())
        shutil.copytree(good, manager.path(20))
    assert len(manager.set_aside()) == len(damages)
    assert_is_snapshot(manager.load(20), 20)


LOOKS = """
import json, sys
from pathlib import Path
from hpc_train.checkpoint import disk_io
from hpc_train.checkpoint.names import Retention
from hpc_train.checkpoint.manager import CheckpointManager
from tests.support import collect_log

disk_io.RETRY_WAITS_SECS = (0.01,) * 5
notes, _ = collect_log()
found = CheckpointManager(Path(sys.argv[1]), Retention(5)).find_whole()
print(json.dumps([notes, found.step, found.damaged]))
"""


@pytest.mark.parametrize("name", ["state.h5", "manifest.json"])
@pytest.mark.parametrize("call", ["open", "read"])
def test_an_error_of_reading_that_passes_is_waited_out_and_one_that_stays_is_named(
    manager: CheckpointManager, injector: Injector, call: str, name: str
) -> None:
    path, said = manager.path(20) / name, f"[Errno {errno.EIO}] {os.strerror(errno.EIO)}: "

    def looked(times: str) -> tuple[list[str], int, list[tuple[int, str]]]:
        program = [sys.executable, "-c", LOOKS, str(path.parents[1])]
        done = run_program(program, path.parent, **injector.env(f"{call}:{path}:1:{times}:EIO"))
        assert done.returncode == 0, done.stderr
        notes, step, damaged = json.loads(done.stdout)
        assert all(said in note and str(path) in note and "trying again" in note for note in notes), notes
        return notes, step, damaged

    notes, step, damaged = looked("2")
    assert (len(notes), step, damaged) == (2, 20, [])
    notes, step, damaged = looked("*")
    assert (len(notes), step, [step for step, _ in damaged]) == (5, 10, [20])
    assert said in damaged[0][1]
    assert str(path) in damaged[0][1]


def damage_newest(job_dir: Path) -> dict[str, Path]:
    """Damages the three newest of four checkpoints, each in its own way; what each warning must say, and the folder."""
    folders = sorted((job_dir / "checkpoints").glob("step-????????"))[-3:]
    state = folders[2] / "state.h5"
    os.truncate(state, state.stat().st_size // 2)
    flip_bit(folders[1] / "state.h5", 8 * 5000)
    (folders[0] / "manifest.json").unlink()
    return {"bytes, but it had": folders[2], "do not match their digest": folders[1], "missing": folders[0]}


def test_a_job_falls_back_with_a_warning_and_ends_as_it_would_have(make_job: MakeJob, injector: Injector) -> None:
    job = make_job(train={"max_steps": 40}, eval={"start_delay_secs": 1000})
    assert train(job, 0).returncode == 0
    before, checkpoints = variables(job.job_dir, 40), job.job_dir / "checkpoints"
    damaged = damage_newest(job.job_dir)
    passing = "read:/step-00000010/state.h5:1:2:EIO"
    done = train(job, 0, **injector.env(passing))
    assert done.returncode == 0, done.stderr
    assert len(injector.struck()) == 2
    assert "going on from step 10 " in done.stdout
    assert "Input/output error" in done.stdout
    for said, folder in damaged.items():
        lines = [line for line in done.stdout.splitlines() if str(folder) in line and "warning" in line]
        assert len(lines) == 1, done.stdout
        assert said in lines[0]
        assert f"{folder.name}.damaged" in lines[0]
    names = {path.name for path in checkpoints.iterdir()} - {"best.json"}
    steps = [f"step-{step:08d}" for step in (10, 20, 30, 40)]
    assert names == {*steps, *(f"{step}.damaged" for step in steps[1:])}
    for name, value in variables(job.job_dir, 40).items():
        assert value.tobytes() == before[name].tobytes(), name

    damage_newest(job.job_dir)
    (checkpoints / "step-00000010" / "state.h5").unlink()
    status = json.loads((job.job_dir / "status.json").read_text())
    for ranks in (0, 2):
        done = train(job, ranks)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("hpc-train: error: ")]
        for step in steps:
            assert sum(f"{checkpoints / step}" in line for line in errors) == 1, done.stderr
        assert {path.name for path in checkpoints.iterdir()} >= set(steps), "nothing is renamed when none is whole"
    assert json.loads((job.job_dir / "status.json").read_text()) == status


def test_the_snippet_in_the_documentation_reads_a_checkpoint(manager: CheckpointManager) -> None:
    text = (REPOSITORY / "docs" / "faults.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    path = "runs/mine/checkpoints/step-00000200"
    assert path in snippet
    done = run_program([sys.executable, "-c", snippet.replace(path, str(manager.path(20)))], manager.path(20))
    assert done.returncode == 0, done.stderr
    for said in ("'step': ", "model dense/kernel (300, 100) float32", "optimizer adam/momentum (300, 100) float64",
                 "'rows_read': ", "['python']"):  # fmt: skip
        assert said in done.stdout, done.stdout

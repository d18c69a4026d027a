"""What of a job-dir can go, and what never does."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hpc_train import folders
from hpc_train.checkpoint.best import Best
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention, passing_name
from hpc_train.cli.app import app
from hpc_train.jobs import clean as cleaner
from hpc_train.jobs.clean import clean, cleanings
from hpc_train.jobs.record.installation import this_installation
from hpc_train.resilience.job_lock import JobLock
from tests.job_dirs import write_job
from tests.unit.checkpoint.test_checkpoint import snapshot
from tests.unit.jobs.submissions import a_submission

LONG_AGO = time.time() - 1e6


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "runs"


def written(path: Path, size: int = 1 << 20, when: float = LONG_AGO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    os.utime(path, (when, when))
    return path


def manager_of(job_dir: Path) -> CheckpointManager:
    return CheckpointManager(job_dir / "checkpoints", Retention(0))


def a_job(root: Path, name: str = "a", state: str = "succeeded", best: int | None = 20) -> Path:
    """A job-dir that has ended, with all that can go and all that stays."""
    folder = write_job(root / name, [], {"state": state, "step": 40, "updated": LONG_AGO})
    manager = manager_of(folder)
    for step in (10, 20, 30, 40):
        manager.save(snapshot(step))
    if best is not None:
        manager.note_best(Best("loss", "min", 0.5, best))
    for kept in ("code/model.py", "export/final/1/variables", "logs/job.out", "logs/run-2/1/rank.0/stdout"):
        written(folder / kept)
    return folder


def with_left_overs(folder: Path) -> list[Path]:
    """What is to go besides old checkpoints, 1 MiB each."""
    temporary = passing_name(50, "host-1.ab", "tmp")
    found = [
        written(folder / "checkpoints" / temporary / "state.h5"),
        written(folder / "checkpoints/step-00000005.damaged/x"),
    ]
    found += [written(folder / name) for name in (".status.json.0123456789abcdef.tmp", "logs/run-0/1/rank.0/stdout")]
    found += [written(folder / "logs/run-1/1/rank.1/stderr")]
    dead = f".1700000000.{os.uname().nodename}-{2**22 + 1}@1@x.tmp"
    return [*found, written(folder / "export/final" / dead / "variables")]


def contents(folder: Path) -> dict[str, object]:
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()}


def run(root: Path, *arguments: object, given: str | None = None) -> Result:
    return CliRunner().invoke(app, ["clean", "--root", str(root), *map(str, arguments)], input=given)


def test_left_overs_old_checkpoints_and_earlier_output_go_and_nothing_else(root: Path) -> None:
    folder = a_job(root)
    left = with_left_overs(folder)
    before = contents(folder)
    (found,) = cleanings([folder])
    assert contents(folder) == before, "looking changes nothing"
    assert {removal.kind: removal.what for removal in found.removals} == {
        "left-overs": "of 3 writes cut short",
        "damaged checkpoints": "1 set aside",
        "old checkpoints": "2 of 4 (step 10, 30)",
        "output of earlier runs": "run-0 to run-1",
    }
    done = clean(found)
    assert done.problem is None and done.bytes >= 6 << 20
    gone = {str(path.relative_to(folder)) for path in left}
    gone |= {name for name in before if name.startswith(("checkpoints/step-00000010", "checkpoints/step-00000030"))}
    assert contents(folder) == {name: size for name, size in before.items() if name not in gone}
    assert manager_of(folder).find_whole().step == 40 and manager_of(folder).best() is not None
    assert cleanings([folder])[0].removals == (), "nothing more"


def test_the_copy_of_hpc_train_that_the_job_goes_on_with_stays(root: Path) -> None:
    folder = a_job(root, best=None)
    fingerprints = [digit * 32 for digit in "0123"]
    for fingerprint in (*fingerprints, "others"):
        written(folder / "installation" / fingerprint / "hpc_train/__init__.py")
        if fingerprint != fingerprints[3]:
            os.utime(folder / "installation" / fingerprint, (0, 0))
    assert "earlier installations" not in {one.kind for one in cleanings([folder], keep=0)[0].removals}, "not known"
    now = replace(this_installation(), fingerprint=fingerprints[2], copied=True)
    a_submission(installation=now).save(folder)
    (found,) = cleanings([folder], keep=0)
    assert [(one.kind, one.what) for one in found.removals] == [
        ("earlier installations", "2 of 5 copies of hpc_train")
    ], "a new one may be of somebody who submits"
    os.utime(folder / "installation" / fingerprints[3], (0, 0))
    (found,) = cleanings([folder], keep=0)
    done = clean(found)
    assert done.problem is None and done.bytes >= 3 << 20
    assert sorted(path.name for path in (folder / "installation").iterdir()) == [fingerprints[2], "others"]
    a_submission(installation=replace(now, copied=False)).save(folder)
    clean(cleanings([folder], keep=0)[0])
    assert [path.name for path in (folder / "installation").iterdir()] == ["others"]

    elsewhere = written(root / "elsewhere" / fingerprints[0] / "x").parent.parent
    (folder / "installation").rename(root / "moved")
    (folder / "installation").symlink_to(elsewhere)
    assert cleanings([folder], keep=0)[0].removals == ()


def test_as_many_checkpoints_stay_as_are_asked_for(root: Path) -> None:
    folder = a_job(root, best=None)
    (found,) = cleanings([folder], keep=3)
    assert [removal.what for removal in found.removals] == ["1 of 4 (step 10)"]
    assert clean(found).problem is None and manager_of(folder).steps() == [20, 30, 40]
    clean(cleanings([folder], keep=1)[0])
    assert manager_of(folder).steps() == [40]


def test_no_old_checkpoint_goes_where_the_newest_is_damaged(root: Path) -> None:
    folder = a_job(root)
    state = next(path for path in (folder / "checkpoints/step-00000040").iterdir() if path.suffix == ".h5")
    content = bytearray(state.read_bytes())
    content[-100] ^= 1
    state.write_bytes(content)
    done = clean(cleanings([folder])[0])
    assert "old checkpoints stay: the newest is damaged" in (done.problem or "")
    assert manager_of(folder).steps() == [10, 20, 30, 40]


def test_a_checkpoint_that_is_read_and_one_whose_replacement_never_came_stay(root: Path) -> None:
    folder = a_job(root)
    manager = manager_of(folder)
    replaced = manager.path(40).with_name(passing_name(40, "host-1.ab", "old"))
    manager.path(40).rename(replaced)
    written(folder / ".x.0123456789abcdef.tmp")
    with manager.reading(10):
        done = clean(cleanings([folder])[0])
    assert done.problem == "1 old checkpoint cannot be removed, or is being read"
    assert manager.steps() == [10, 20, 40]


def test_a_file_that_is_just_written_stays(root: Path) -> None:
    folder = a_job(root)
    fresh = written(folder / ".report.html.0123456789abcdef.tmp", when=time.time())
    assert "left-overs" not in {removal.kind for removal in cleanings([folder])[0].removals} and fresh.exists()


def refused(folder: Path, whole: bool = False) -> str:
    before = contents(folder)
    (found,) = cleanings([folder], whole=whole)
    assert found.removals == () and found.refused is not None and contents(folder) == before
    return found.refused


def test_a_job_that_runs_waits_or_cannot_be_read_is_left_alone(root: Path) -> None:
    folder = a_job(root)
    with JobLock(folder):
        assert "RUNNING" in refused(folder, whole=True) or "PREPARING" in refused(folder, whole=True)
    (folder / "status.json").write_text("[]")
    assert "cannot be read" in refused(folder)
    other = a_job(root, "b", state="running")
    a_submission(name="b", backend="pbs").save(other)
    assert "whether the job runs is not known" in refused(other, whole=True)


def test_a_job_that_is_started_between_looking_and_cleaning_is_left_alone(root: Path) -> None:
    folder = a_job(root)
    found, before = cleanings([folder])[0], contents(folder)
    with JobLock(folder):
        done = clean(found)
        assert done.bytes == 0 and "another job uses this job-dir" in (done.problem or "")
    assert contents(folder) == before


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    folder, elsewhere = a_job(root), tmp_path / "elsewhere"
    (root / "link").symlink_to(folder)
    assert "is a symbolic link to" in refused(root / "link", whole=True)
    (folder / "checkpoints").rename(elsewhere)
    (folder / "checkpoints").symlink_to(elsewhere)
    before = contents(elsewhere)
    assert "symbolic link" in refused(folder) and "symbolic link" in refused(folder, whole=True)
    (folder / "checkpoints").unlink()
    (folder / "logs" / "run-0").symlink_to(elsewhere)
    (folder / ".x.0123456789abcdef.tmp").symlink_to(elsewhere)
    os.utime(folder / ".x.0123456789abcdef.tmp", (LONG_AGO, LONG_AGO), follow_symlinks=False)
    (folder / "export" / "best").symlink_to(elsewhere)
    assert clean(cleanings([folder])[0]).problem is None
    assert not os.path.lexists(folder / "logs" / "run-0") and not os.path.lexists(folder / ".x.0123456789abcdef.tmp")
    assert contents(elsewhere) == before
    assert clean(cleanings([folder], whole=True)[0]).problem is None
    assert not folder.exists() and contents(elsewhere) == before


def test_the_job_dir_of_somebody_else_is_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_job(root)
    monkeypatch.setattr(folders.os, "geteuid", lambda: 12345)
    monkeypatch.setattr(cleaner, "exposure", lambda path, group=True: "belongs to uid 99")
    assert refused(folder, whole=True) == "belongs to uid 99, who has to clean it"
    monkeypatch.undo()
    folder.chmod(0o777)
    assert "may be written by all users" in refused(folder)


def test_the_command_says_what_can_go_and_asks(root: Path) -> None:
    folder = a_job(root, "bad\x1b[2J")
    with_left_overs(folder)
    before = contents(folder)
    done = run(root, "--dry-run")
    assert done.exit_code == 0 and "\x1b" not in done.output and contents(folder) == before
    assert "old checkpoints: 2 of 4 (step 10, 30)" in done.stdout
    done = run(root)
    assert (
        done.exit_code == 2 and "nobody can be asked here; --yes removes" in done.stderr and contents(folder) == before
    )
    done = run(root, "--yes")
    assert done.exit_code == 0 and "removed " in done.stdout and manager_of(folder).steps() == [20, 40]
    assert "nothing to remove" in run(root, "--yes").stdout


def test_whole_job_dirs_go_only_by_name(root: Path) -> None:
    first, second = a_job(root), a_job(root, "b")
    for arguments, said in (
        (["--jobs", "--yes"], "name them"),
        (["--jobs", "--yes", root], "a folder of job-dirs is not removed"),
        (["--jobs", "--yes", "c"], "no such job"),
    ):
        done = run(root, *arguments)
        assert done.exit_code == 2 and said in done.stderr
    assert first.exists() and second.exists()
    with JobLock(second):
        done = run(root, "--jobs", "--yes", "a", second)
    assert "b: is left alone: " in done.stderr
    assert (first.exists(), second.exists()) == (False, True)


def test_what_was_cut_short_can_be_removed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_job(root)
    (found,) = cleanings([folder], whole=True)
    monkeypatch.setattr(cleaner, "remove_tree", lambda path: None)
    assert "not all of it can be removed" in (clean(found).problem or "")
    assert json.loads((folder / "status.json").read_text())["state"] == "succeeded"
    monkeypatch.undo()
    assert clean(cleanings([folder], whole=True)[0]).problem is None and not folder.exists()


def test_job_dirs_in_a_job_dir_and_what_was_there_before_are_not_removed_with_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = a_job(root)
    inner = a_job(outer / "sweep", "inner")
    assert "other job-dirs are in it (sweep/inner); remove those first" in refused(outer, whole=True)
    assert run(root, "--jobs", "--yes", "a").exit_code == 1 and inner.is_dir()
    inner.rename(root / "inner")
    assert "holds what the job has not written (sweep); move that away" in refused(outer, whole=True)
    for name in ("train.py", "data/x.h5", ".git/HEAD"):
        written(outer / name)
    assert "(.git, data, sweep, train.py)" in refused(outer, whole=True)
    (found,) = cleanings([root / "inner"], whole=True)
    written(root / "inner/notes.txt")
    assert "left alone: it holds what the job has not written (notes.txt)" in str(clean(found).problem)
    (root / "inner/notes.txt").unlink()
    monkeypatch.chdir(root / "inner/checkpoints")
    assert "the working directory is in it" in refused(root / "inner", whole=True)


def test_all_checkpoints_stay_where_the_job_was_asked_to_keep_them(root: Path) -> None:
    folder = a_job(root, best=None)
    (folder / "job.yaml").write_text("run: {keep_checkpoint_max: 0}\n")
    assert cleanings([folder])[0].removals == ()
    (found,) = cleanings([folder], keep=2)
    assert [removal.what for removal in found.removals] == ["2 of 4 (step 10, 20)"]
    assert "--keep: 0 is not allowed; allowed: a whole number from 1" in run(root, "--keep", "0").output

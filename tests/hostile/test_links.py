"""Links and files that others have planted where a job writes: nothing elsewhere is overwritten, emptied or removed."""

from __future__ import annotations

import ast
import errno
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.errors import UserError
from hpc_train.export.export_dir import ExportFolder
from hpc_train.files import replace_text
from hpc_train.jobdir.trust import check_job_dir
from hpc_train.jobs.launch.progress_check import why_not_again
from hpc_train.jobs.record.job_dirs import make_job_dir
from hpc_train.jobs.schedulers.local.queue import LocalQueue
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.job_lock import JobLock
from hpc_train.telemetry.json_files import Lenient, write_json
from hpc_train.telemetry.metrics import MetricsWriter, note_failed
from hpc_train.telemetry.status import mark_failed
from hpc_train.telemetry.tensorboard_files import EventFiles
from tests.hostile.commands import contents_of, link_of_another
from tests.ranks import train
from tests.support import LIMIT_SECS, REPOSITORY, Job

PACKAGE = REPOSITORY / "hpc_train"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What belongs to the victim."""
    (tmp_path / "outside/folder").mkdir(parents=True)
    (tmp_path / "outside/file").write_text("mine\n")
    (tmp_path / "outside/folder/step-00000001").mkdir()
    (tmp_path / "outside/folder/step-00000001/manifest.json").write_text("{}")
    return tmp_path / "outside"


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def snapshot(step: int) -> Snapshot:
    return Snapshot({"w": np.zeros(3, np.float32)}, {}, DataProgress(step, 0, ()), None, 1, float(step))


def test_a_lock_is_not_taken_through_a_link(job_dir: Path, outside: Path) -> None:
    before = contents_of(outside)
    for target in ("file", "absent"):
        (job_dir / "lock.json").unlink(missing_ok=True)
        (job_dir / "lock.json").symlink_to(outside / target)
        with pytest.raises(UserError, match=r"lock\.json: cannot be written: is a symbolic link, not a regular file"):
            JobLock(job_dir).acquire()
    assert contents_of(outside) == before


def test_metrics_are_not_appended_through_a_link(job_dir: Path, outside: Path) -> None:
    before = contents_of(outside)
    (job_dir / "metrics.jsonl").symlink_to(outside / "file")
    with pytest.raises(OSError, match="is a symbolic link, not a regular file"):
        MetricsWriter(job_dir, Lenient())
    note_failed(job_dir, "x")
    assert contents_of(outside) == before


def test_event_files_are_not_written_through_links(
    job_dir: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = contents_of(outside)
    monkeypatch.setattr("hpc_train.telemetry.tensorboard_files.time.time", lambda: 1.0)
    monkeypatch.setattr("hpc_train.telemetry.tensorboard_files.socket.gethostname", lambda: "n")
    (job_dir / "train").mkdir()
    (job_dir / f"train/events.out.tfevents.0000000001.000000.n.{os.getpid()}").symlink_to(outside / "file")
    (job_dir / "eval").symlink_to(outside / "folder")
    (job_dir / "ranks").symlink_to(outside / "folder")
    for folder in ("train", "eval", "ranks/rank_0"):
        files = EventFiles(job_dir, Lenient())
        files.write(folder, 1, [])
        files.close()
    assert contents_of(outside) == before
    assert [("train" in text, "File exists" in text) for text in caplog.messages[:1]] == [(True, True)]
    assert sum("is a symbolic link, not a folder" in text for text in caplog.messages) == 2


def test_checkpoints_are_saved_and_removed_in_their_own_folder_alone(job_dir: Path, outside: Path) -> None:
    before = contents_of(outside)
    manager = CheckpointManager(job_dir / "checkpoints", Retention(1))
    (job_dir / "checkpoints").symlink_to(outside / "folder")
    with pytest.raises(NotADirectoryError, match="is a symbolic link, not a folder"):
        manager.save(snapshot(2))
    (job_dir / "checkpoints").unlink()
    (job_dir / "checkpoints").mkdir()
    old = f".step-00000002.{os.uname().nodename}-{os.getpid()}.tmp"  # as an older version called it
    (job_dir / "checkpoints" / old).symlink_to(outside / "folder")
    (job_dir / "checkpoints/step-00000001").symlink_to(outside / "folder/step-00000001")
    for step in (2, 3, 4):
        manager.save(snapshot(step))
    manager.clean()
    assert contents_of(outside) == before


def test_reports_of_failures_and_hangs_are_new_files(job_dir: Path, outside: Path) -> None:
    before = contents_of(outside)
    (job_dir / "logs").mkdir()
    (job_dir / "logs/failure-x.txt").symlink_to(outside / "absent")
    assert FailureReport(job_dir / "logs", "x").claim(0, ValueError("y")) is None, "another has reported, as it seems"
    (job_dir / "logs/requeues.jsonl").symlink_to(outside / "file")
    why_not_again(job_dir, 1, False, {"SLURM_JOB_ID": "7"})
    assert contents_of(outside) == before


def test_exports_go_into_their_own_folder_alone(job_dir: Path, outside: Path) -> None:
    before = contents_of(outside)
    (job_dir / "export").symlink_to(outside / "folder")
    with pytest.raises(NotADirectoryError, match="is a symbolic link, not a folder"):
        ExportFolder(job_dir / "export/final", job_dir=job_dir).write(
            lambda path: write_json(path / "hpc_train.json", {})
        )
    (job_dir / "export").unlink()
    (job_dir / "export").mkdir()
    (job_dir / "export/final").symlink_to(outside / "folder")
    with pytest.raises(NotADirectoryError, match="is a symbolic link, not a folder"):
        ExportFolder(job_dir / "export/final", job_dir=job_dir).write(
            lambda path: write_json(path / "hpc_train.json", {})
        )
    assert contents_of(outside) == before


@pytest.mark.parametrize("name", ["checkpoints", "export", "logs", "train", "ranks", "eval", "eval_more"])
def test_a_job_does_not_begin_where_a_folder_leads_elsewhere(job_dir: Path, outside: Path, name: str) -> None:
    (job_dir / name).symlink_to(outside / "folder")
    with pytest.raises(UserError, match=rf"run/{name}: is a symbolic link to .*/outside/folder, where the job would"):
        check_job_dir(job_dir)


def test_a_job_does_not_begin_where_all_may_write_and_warns_where_its_group_may(job_dir: Path) -> None:
    assert check_job_dir(job_dir) is None
    job_dir.chmod(0o777)
    with pytest.raises(UserError, match="the job-dir may be written by all users, who could replace"):
        check_job_dir(job_dir)
    job_dir.chmod(0o770)
    assert "may be written by its group" in str(check_job_dir(job_dir))
    link = job_dir.with_name("link")
    link.symlink_to(job_dir)
    job_dir.chmod(0o700)
    assert check_job_dir(link) is None, "the job-dir itself may be reached by a link"


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_queue_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    queue = LocalQueue(tmp_path / "queue", 2)
    ticket, file = queue.enter(tmp_path, 1, None)
    queue.leave(file, ticket)
    (tmp_path / "queue").chmod(mode)
    for use in (queue.tickets, lambda: queue.enter(tmp_path, 1, None)):
        with pytest.raises(UserError, match=r"the queue of this machine may be written by .*; chmod go-w it"):
            use()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_queue_without_locks_or_room_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    queue, name = LocalQueue(tmp_path / "queue", 2), "pwrite" if number == errno.ENOSPC else "flock"
    target = "hpc_train.jobs.schedulers.local.queue." + ("os.pwrite" if name == "pwrite" else "fcntl.flock")
    monkeypatch.setattr(target, refuse)
    with pytest.raises(UserError, match=rf"cannot be kept there: {os.strerror(number)}; or set XDG_STATE_HOME"):
        queue.enter(tmp_path, 1, None)
    monkeypatch.undo()
    assert queue.tickets() == [], "nothing is left of it"


def test_a_queue_that_was_prepared_is_not_written_through_links(tmp_path: Path, outside: Path) -> None:
    before = contents_of(outside)
    (tmp_path / "queue").mkdir(mode=0o700)
    (tmp_path / "queue/lock").symlink_to(outside / "file")
    with pytest.raises(UserError, match="cannot be kept there: is a symbolic link, not a regular file"):
        LocalQueue(tmp_path / "queue", 2).enter(tmp_path, 1, None)
    assert contents_of(outside) == before


def test_training_in_a_job_dir_full_of_links_touches_nothing_elsewhere(make_job, outside: Path) -> None:
    """Those that a job replaces or removes: it trains as ever."""
    job: Job = make_job()
    names = ["job.yaml", "data.json", "environment.json", "status.json", "report.html", "early_stop.json"]
    job.job_dir.mkdir(mode=0o700)
    before = contents_of(outside)
    for name in (*names, f".report.html.{os.getpid()}.tmp", "warm_start.json"):
        (job.job_dir / name).symlink_to(outside / ("file" if name != "report.html" else "absent"))
    done = train(job)
    assert done.returncode == 0, done.stderr
    assert contents_of(outside) == before
    assert not any(
        (job.job_dir / name).is_symlink() for name in names if name not in ("early_stop.json", "report.html")
    )


# ---- a folder that becomes a link of another user


def test_a_running_job_does_not_follow_its_job_dir_elsewhere(
    job_dir: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write in the folder above puts a link in the place of the job-dir, while the job runs."""
    (outside / "folder/checkpoints/step-00000001").mkdir(parents=True)
    (outside / "folder/logs").mkdir()
    (outside / "folder/export/final").mkdir(parents=True)
    manager, events = CheckpointManager(job_dir / "checkpoints", Retention(1)), EventFiles(job_dir, Lenient())
    manager.save(snapshot(1))
    job_dir.rename(job_dir.with_name("aside"))
    link_of_another(job_dir, outside / "folder", monkeypatch)
    before = contents_of(outside)
    theirs = rf"run is a symbolic link of uid \d+, who can lead it elsewhere than to {re.escape(str(outside))}/folder;"
    lock, queue = JobLock(job_dir), LocalQueue(job_dir / "queue", 2)
    exports, report = ExportFolder(job_dir / "export/final", job_dir=job_dir), FailureReport(job_dir / "logs", "x")
    for step in (
        lambda: manager.save(snapshot(2)),
        lambda: manager.put_aside(1),
        lambda: MetricsWriter(job_dir, Lenient()),
        lambda: write_json(job_dir / "status.json", {}),
        lambda: exports.write(lambda path: write_json(path / "hpc_train.json", {})),
    ):
        with pytest.raises(OSError, match=theirs):
            step()
    for refused in (lock.acquire, lambda: queue.enter(job_dir, 1, None), lambda: make_job_dir(job_dir / "new")):
        with pytest.raises(UserError, match=theirs):
            refused()
    manager.clean()
    manager.thin_out()
    events.write("train", 1, [])
    assert "not written" in str(report.claim(0, ValueError("x")))
    note_failed(job_dir, "x")
    mark_failed(job_dir, {"rank": 0, "message": "x"}, None)
    assert contents_of(outside) == before


def test_nor_where_that_happens_between_two_steps(
    job_dir: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logs` is a folder of the job's and the link of another in turn, as fast as can be."""
    (job_dir / "logs").mkdir()
    link_of_another(job_dir / "link", outside, monkeypatch)
    before, ended, written, refused = contents_of(outside), threading.Event(), 0, 0

    def swap() -> None:
        while not ended.is_set():
            for name, other in (("logs", "aside"), ("link", "logs"), ("logs", "link"), ("aside", "logs")):
                (job_dir / name).rename(job_dir / other)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        limit = time.monotonic() + LIMIT_SECS
        while min(written, refused) < 50 and not (outside / "failure.txt").exists():
            assert swapping.is_alive() and time.monotonic() < limit, (written, refused)
            try:
                replace_text(job_dir / "logs/failure.txt", "ours")
                written += 1
            except (FileNotFoundError, NotADirectoryError):  # in the moment in which there is neither, or the other
                continue
            except OSError as error:
                assert error.errno == errno.ELOOP
                refused += 1
    finally:
        ended.set()
        swapping.join()
    assert contents_of(outside) == before
    assert [path.name for path in (job_dir / "logs").iterdir()] == ["failure.txt"]


# ---- two modules open, make and move files

_ALONE = {"files.py", "folders.py", "stdio.py", "data/memory.py", "telemetry/progress.py", "checkpoint/disk_io.py"}
"""Modules that open standard streams, the kernel's files, and descriptors of files.open_regular's."""
_NAMED = re.compile(r"/proc/|SCRIPTS|devnull|O_DIRECTORY")
_OPENED = re.compile(r"(create|open_regular|open_to_\w+)\(.*\)|\w*descriptor|opened|file|copy")
_MAKING = {"write_text", "write_bytes", "read_text", "read_bytes", "touch", "symlink_to", "copyfile", "copy2"}
_MOVING = {"mkdir", "makedirs", "mkdtemp", "rename", "unlink", "rmdir", "rmtree", "move", "copytree", "link"}
_CHANGING = {"os.replace", "os.remove", "os.truncate", "os.chmod", "os.chown"}


def _calls(path: Path) -> list[str]:
    """Calls that open, make, copy, rename or remove files and folders, each as it is written."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or _NAMED.search(ast.unparse(node)):
            continue
        of_descriptor = bool(node.args) and _OPENED.fullmatch(ast.unparse(node.args[0]))
        opens = ast.unparse(node.func) in ("open", "os.open", "io.open") and not of_descriptor
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        replaces = method == "replace" and len(node.args) == 1 and not node.keywords  # a path's; a text's has two
        if opens or replaces or method in _MAKING | _MOVING or ast.unparse(node.func) in _CHANGING:
            found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)[:100]}")
    return found


def test_two_modules_open_make_and_move_files() -> None:
    modules = [path for path in sorted(PACKAGE.rglob("*.py")) if str(path.relative_to(PACKAGE)) not in _ALONE]
    wrong = [call for path in modules if "bootstrap" not in path.parts for call in _calls(path)]
    assert not wrong, "\n".join(wrong)
    assert _calls(PACKAGE / "files.py") and len(_calls(PACKAGE / "folders.py")) >= 5, "it would find them"

"""Standard input, output and error that are closed, full, or read by nobody; and locales that cannot show it all.

What a command does counts: it ends as ever, and no file that it opens gets what it prints. Where it does nothing but
print, it fails where it cannot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hpc_train as ht
from hpc_train.jobs.schedulers.local import runner
from tests.job_dirs import a_job
from tests.support import LIMIT_SECS, REPOSITORY, Job, run_program

MakeJob = Callable[..., Job]

HPC_TRAIN = [sys.executable, "-m", "hpc_train"]
REDIRECTIONS = [
    "<&-",
    ">&-",
    "2>&-",
    "<&- >&-",
    "<&- >&- 2>&-",
    ">/dev/full",
    "2>/dev/full",
    ">/dev/full 2>&1",
    "| true",
]
LOCALES = {
    "ascii locale": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1:strict"},
}


@pytest.fixture(autouse=True)
def own_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HPC_TRAIN_BACKEND": "local",
        "HPC_TRAIN_ROOT": str(tmp_path / "runs"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)


def redirected(command: list[str], redirection: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs it as a shell does; of a pipe, its own exit code."""
    script = f'"$@" {redirection}\nexit "${{PIPESTATUS[0]}}"'
    return run_program(["bash", "-c", script, "bash", *command], cwd, **env)


def program_job(folder: Path, text: str = 'print("begins"); print("ends")') -> Path:
    folder.mkdir()
    (folder / "task.py").write_text(text)
    (folder / "job.yaml").write_text("name: tiny\nmodule: task\nresources: {tier: CUSTOM}\n")
    return folder / "job.yaml"


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_a_job_that_is_queued_runs(tmp_path: Path, redirection: str) -> None:
    job_file = program_job(tmp_path / "code")

    done = redirected([*HPC_TRAIN, "submit", str(job_file), "--name", "first"], redirection, tmp_path)

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    job = ht.Job(tmp_path / "runs/first")
    assert job.wait(LIMIT_SECS).state == "SUCCEEDED"
    assert json.loads((job.job_dir / "submission.json").read_text())["job_id"] == "1"
    assert [line for line in job.logs() if not line.startswith("hpc-train: ")] == ["begins", "ends"]
    for path in (path for top in ("state", "runs") for path in (tmp_path / top).rglob("*") if path.is_file()):
        if "installation" in path.parts:  # the code that prints it
            continue
        assert b"next: hpc-train" not in path.read_bytes(), f"{path} got what is printed"


def test_a_job_that_python_queues_runs(tmp_path: Path) -> None:
    job_file = program_job(tmp_path / "code")
    program = f"import hpc_train as ht; ht.submit({str(job_file)!r}, name='first'); print('printed')"

    done = redirected([sys.executable, "-c", program], "<&- >&- 2>&-", tmp_path)

    assert done.returncode == 0
    assert ht.Job(tmp_path / "runs/first").wait(LIMIT_SECS).state == "SUCCEEDED"


def test_a_job_whose_log_is_on_a_full_disk_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def on_a_full_disk(words: list[str], **more: Any) -> subprocess.Popen[bytes]:
        with open("/dev/full", "wb") as full:
            return popen(words, **{**more, "stdout": full, "stderr": full})

    monkeypatch.setattr(runner.subprocess, "Popen", on_a_full_disk)
    job = ht.submit(program_job(tmp_path / "code", "open('ran', 'w').close()"), name="first")
    assert job.wait(LIMIT_SECS).state == "SUCCEEDED"
    assert (job.job_dir / "code/ran").exists()


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    """A job that has ended, with a log that fills any buffer."""
    folder = a_job(tmp_path / "runs/ended")
    (folder / "logs").mkdir()
    (folder / "logs/job.out").write_text("a line\n" * 50_000)
    (folder / "checkpoints").mkdir()
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["größe │"] = np.zeros((4, 2), np.float32)
    program_job(tmp_path / "code")
    return folder


ANSWERS = ["list", "list --json", "describe ended", "logs ended", "logs -n 2 ended", "tiers", "checkpoints runs/ended",
           "report --markdown runs/ended", "shard inspect data.h5", "submit code/job.yaml --dry-run"]  # fmt: skip


@pytest.mark.parametrize("words", ANSWERS)
def test_a_command_that_only_prints_fails_where_it_cannot(tmp_path: Path, job_dir: Path, words: str) -> None:
    command = [*HPC_TRAIN, *words.split()]
    full = redirected(command, ">/dev/full", tmp_path)
    message = "hpc-train: standard output: No space left on device; what was printed is incomplete\n"
    assert (full.returncode, full.stderr) == (1, message)
    unread = redirected(command, "| true", tmp_path)
    assert (unread.returncode, unread.stderr) == (0, "")
    closed = redirected(command, ">&-", tmp_path)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("redirection", [">/dev/full 2>&1", "2>&1 | true", "<&- >&- 2>&-"])
def test_a_command_that_does_something_does_it(tmp_path: Path, job_dir: Path, redirection: str) -> None:
    np.savez(tmp_path / "rows.npz", x=np.arange(8.0))

    def code_of(*words: str) -> int:
        return redirected([*HPC_TRAIN, *words], redirection, tmp_path).returncode

    assert code_of("shard", "made/rows", "rows.npz", "--shards", "2") == 0
    assert len(list((tmp_path / "made").glob("rows-*.h5"))) == 2
    assert code_of("report", "runs/ended") == 0
    assert (job_dir / "report.html").exists()
    waiting = program_job(tmp_path / "waiting", "import time\nwhile True: time.sleep(1)")
    job = ht.submit(waiting, name="first")
    assert code_of("--verbose", "cancel", "first") == 0
    assert job.wait(LIMIT_SECS).state == "CANCELLED"
    assert code_of("wait", "first") == 11
    assert code_of("resume", "first", "--wait", "--set", "module=nothing") == 2
    assert code_of("describe", "nobody") == 2


def test_output_that_nobody_reads_does_not_end_training(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    command = [*HPC_TRAIN, "train", str(job.file), "--job-dir", str(job.job_dir)]
    full = redirected(command, ">/dev/full", tmp_path)
    assert full.returncode == 0, full.stderr
    assert json.loads((job.job_dir / "status.json").read_text())["state"] == "succeeded"
    assert full.stderr == "hpc-train: standard output: No space left on device; what was printed is incomplete\n"
    shutil.rmtree(job.job_dir)
    closed = redirected(command, "<&- >&- 2>&-", tmp_path)
    assert closed.returncode == 0
    assert json.loads((job.job_dir / "status.json").read_text())["state"] == "succeeded"


@pytest.mark.parametrize("redirection", [">/dev/full 2>&1", "2>&1 | true"])
def test_nor_that_of_launched_ranks(make_job: MakeJob, tmp_path: Path, redirection: str) -> None:
    job = make_job()
    command = [*HPC_TRAIN, "launch", "-n", "2", str(job.file), "--job-dir", str(job.job_dir)]
    assert redirected(command, redirection, tmp_path).returncode == 0
    assert json.loads((job.job_dir / "status.json").read_text())["state"] == "succeeded"


@pytest.mark.parametrize("redirection", [">/dev/full", "| true"])
def test_nor_that_of_a_program_of_the_users(tmp_path: Path, redirection: str) -> None:
    """Which has set up its streams itself."""
    program = """
import time
from pathlib import Path
from hpc_train.telemetry.logs import log, set_up_logging
set_up_logging(True, 0)
for _ in range(20):
    log.info("a line")
    time.sleep(0.05)  # by then a pipe has lost its reader
Path("went_on").touch()
"""
    redirected([sys.executable, "-c", program], redirection, tmp_path)
    assert (tmp_path / "went_on").exists()


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_second_ctrl_c_ends_a_job_that_cannot_report_it(tmp_path: Path, redirection: str) -> None:
    program = "from hpc_train.resilience.signals import leave_at_once; leave_at_once()"
    assert redirected([sys.executable, "-c", program], redirection, tmp_path).returncode == 130


@pytest.mark.parametrize("locale", LOCALES)
def test_a_locale_that_cannot_show_it(tmp_path: Path, job_dir: Path, locale: str) -> None:
    """Names that are not UTF-8 among them."""
    (job_dir / "logs/job.out").write_bytes("100% │██│ größe\n".encode() + b"caf\xe9\n")
    odd = Path(os.fsdecode(bytes(tmp_path / "runs") + b"/caf\xe9"))
    shutil.copytree(job_dir, odd)
    for words in [*ANSWERS, "describe caf\udce9", "checkpoints runs/caf\udce9", "report runs/caf\udce9", "describe ö"]:
        done = redirected([*HPC_TRAIN, *words.split()], ">out 2>err", tmp_path, **LOCALES[locale])
        errors = (tmp_path / "err").read_text(errors="replace")
        assert done.returncode == (2 if words.endswith("ö") else 0), f"{words}: {errors}"
        assert "Traceback" not in errors
        if words == "logs ended":
            assert b"100% \\u2502\\u2588\\u2588\\u2502 gr" in (tmp_path / "out").read_bytes()


def test_setting_up_opens_what_is_closed(tmp_path: Path) -> None:
    package = tmp_path / "bootstrap"
    package.mkdir()
    shutil.copy(REPOSITORY / "hpc_train/bootstrap/__main__.py", package)
    (package / "set_up.py").write_text(
        "def main():\n    with open('opened', 'w') as file:\n        file.write(str(file.fileno()))\n"
    )
    (package / "__init__.py").touch()
    done = redirected([sys.executable, "bootstrap"], "<&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert int((tmp_path / "opened").read_text()) > 2

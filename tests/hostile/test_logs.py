"""Logs of gigabytes, without newlines, or with holes: what is read of them, and the memory it takes, is little.

Counted is what a command reads and how much memory it takes at most, beside what it does with a log of one line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import LIMIT_SECS, environment
from tests.unit.jobs.submissions import a_submission

MIB = 1 << 20
MUCH = 24 * MIB
"""More memory than a command may take for a log, and far less than the log has."""
COUNTED = """
import atexit, sys
from pathlib import Path
report = Path(sys.argv.pop())
atexit.register(lambda: report.write_text("".join(Path(f"/proc/self/{name}").read_text() for name in ("io", "status"))))
from hpc_train.__main__ import main
main()
"""


@dataclass(frozen=True)
class Use:
    """The beginning of what a command printed, how many bytes it printed and read, and the most memory it had."""

    out: bytes
    printed: int
    read: int
    memory: int


def use_of(folder: Path, *words: str) -> Use:
    with open(folder / "out", "w+b") as out:
        subprocess.run(
            [sys.executable, "-c", COUNTED, *words, str(folder / "counts")],
            cwd=folder,
            env=environment(HPC_TRAIN_ROOT=str(folder), XDG_STATE_HOME=str(folder / "state")),
            stdout=out,
            timeout=LIMIT_SECS,
            check=True,
        )
        counts = dict(line.split(":", 1) for line in (folder / "counts").read_text().splitlines())
        printed = out.seek(0, os.SEEK_END)
        out.seek(0)
        return Use(out.read(MIB), printed, int(counts["rchar"]), int(counts["VmHWM"].split()[0]) << 10)


def a_job(folder: Path, write: Callable[[Path], None], file: str = "logs/job.out") -> Path:
    path = folder / "job" / file
    path.parent.mkdir(parents=True)
    write(path)
    (folder / "job/status.json").write_text(json.dumps({"state": "succeeded", "ranks": 2, "started": 1.0}))
    return folder


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Use:
    """Of a log of one line."""
    return use_of(a_job(tmp_path_factory.mktemp("little"), lambda path: path.write_text("a line\n")), "logs", "job")


def sparse(size: int, end: bytes = b"") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with open(path, "wb") as file:
            file.truncate(size)
            file.seek(0, os.SEEK_END)
            file.write(end)

    return write


LINES = b"".join(b"line %d\n" % number for number in range(1000))
LOGS = {
    "a hole of 100 GiB": sparse(100 << 30),
    "a hole before lines": sparse(100 << 30, b"\n" + LINES),
    "1 GiB without a newline": sparse(1 << 30, b"x" * MIB),
}


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("file", ["logs/job.out", "logs/run-0/1/rank.1/stdout"])
def test_the_last_lines_are_read_from_the_end(tmp_path: Path, little: Use, log: str, file: str) -> None:
    rank = ["--rank", "1"] if "rank" in file else []
    used = use_of(a_job(tmp_path, LOGS[log], file), "logs", "-n", "3", *rank, "job")
    assert used.printed < 2 * MIB
    if log == "a hole before lines":
        assert used.out == b"line 997\nline 998\nline 999\n"
    assert used.read - little.read < 2 * MIB
    assert used.memory - little.memory < MUCH


@pytest.mark.parametrize("options", [[], ["-f"]])
def test_all_lines_are_read_in_bounded_memory(tmp_path: Path, little: Use, options: list[str]) -> None:
    def write(path: Path) -> None:
        with open(path, "wb") as file:
            for _ in range(128):
                file.write(b"x" * MIB)

    used = use_of(a_job(tmp_path, write), "logs", *options, "job")
    assert used.out.replace(b"\n", b"").strip(b"x") == b""
    assert used.printed == 128 * MIB + 2048, "it comes in pieces"
    assert used.memory - little.memory < MUCH


def test_a_failure_is_explained_from_the_end(tmp_path: Path, little: Use) -> None:
    """From what the job has printed, and from the report of a rank that failed."""
    error = b"\nTraceback (most recent call last):\n  File 'a'\nValueError: no such data\n"
    folder = a_job(tmp_path, sparse(100 << 30, error))
    a_submission(name="job").save(folder / "job")
    status = {"state": "failed", "job_id": "7", "exit_code": 1, "started": 1.0, "error": {"message": "it failed"}}
    (folder / "job/status.json").write_text(json.dumps(status))
    for _ in range(2):
        used = use_of(folder, "describe", "job")
        assert b"ValueError: no such data" in used.out
        assert used.read - little.read < 2 * MIB
        assert used.memory - little.memory < MUCH
        sparse(100 << 30, error)(folder / "job/logs/failure-1.txt")


def test_a_line_that_goes_on_for_ever_is_followed(tmp_path: Path) -> None:
    """It comes in pieces while the job runs; the last of it once the job has ended."""
    folder = a_job(tmp_path, lambda path: path.write_bytes(b"x" * MIB))
    (folder / "job/status.json").write_text(json.dumps({"state": "running"}))
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_train", "logs", "-f", "job"],
        cwd=folder,
        env=environment(HPC_TRAIN_ROOT=str(folder), XDG_STATE_HOME=str(folder / "state")),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    for _ in range(8):
        assert process.stdout.readline().strip(b"x") == b"\n"
    (folder / "job/status.json").write_text(json.dumps({"state": "succeeded"}))
    rest = process.communicate(timeout=LIMIT_SECS)[0]
    assert rest.strip(b"x\n") == b"" and process.returncode == 0

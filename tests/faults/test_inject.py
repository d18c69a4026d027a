"""The library that makes faults happen does what its rules say, and nothing else."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.faults.support import Injector
from tests.support import run_program

CALLS = """
import fcntl, os, sys

def attempt(name, call):
    try:
        call()
    except OSError as error:
        print(name, os.strerror(error.errno))
    else:
        print(name, "done")

fd = os.open("file", os.O_RDWR | os.O_CREAT)
for i in range(3):
    attempt("write", lambda: os.write(fd, b"text"))
attempt("pwrite", lambda: os.pwrite(fd, b"text", 0))
attempt("pwritev", lambda: os.pwritev(fd, [b"text"], 0))
attempt("fsync", lambda: os.fsync(fd))
attempt("fdatasync", lambda: os.fdatasync(fd))
attempt("ftruncate", lambda: os.ftruncate(fd, 100))
attempt("pread", lambda: os.pread(fd, 4, 0))
attempt("preadv", lambda: os.preadv(fd, [bytearray(4)], 0))
attempt("open", lambda: os.open("file", os.O_RDONLY))
attempt("rename", lambda: os.rename("file", "renamed"))
attempt("mkdir", lambda: os.mkdir("folder"))
attempt("rmdir", lambda: os.rmdir("folder"))
attempt("unlink", lambda: os.unlink("renamed"))
theirs, ours = (os.open("locked", os.O_RDWR | os.O_CREAT) for _ in range(2))
fcntl.flock(theirs, fcntl.LOCK_EX)
attempt("flock", lambda: fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB))
print("size", os.fstat(fd).st_size)
"""


def run(injector: Injector, folder: Path, *rules: str, rank: int | None = None, **env: str) -> tuple[int, list[str]]:
    done = run_program([sys.executable, "-c", CALLS], folder, **injector.env(*rules, rank=rank), **env)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.splitlines()


LOCKED = "flock Resource temporarily unavailable"
"""Where no rule says otherwise."""


def failing(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.endswith(" done") and not line.startswith("size") and line != LOCKED]


def test_without_a_rule_that_matches_nothing_changes(injector: Injector, tmp_path: Path) -> None:
    for rules in ((), ("any:/other/:1:*:EIO",), ("write:file:100:*:EIO",)):
        code, lines = run(injector, tmp_path, *rules)
        assert (code, failing(lines), lines[-1]) == (0, [], "size 100")
    code, lines = run(injector, tmp_path, "any::1:*:EIO", rank=1, OMPI_COMM_WORLD_RANK="0")
    assert (code, failing(lines)) == (0, []), "the fault was meant for another rank"
    code, lines = run(injector, tmp_path, "any::1:*:EIO", rank=1)
    assert (code, failing(lines)) == (0, []), "the fault was meant for a rank, and this process is none"
    assert not injector.struck()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("write:/file:2:EIO", ["write Input/output error"]),
        ("write:file:2:3:ENOSPC", [f"{c} No space left on device" for c in ("write", "write", "pwrite")]),
        ("write:file:4:*:EDQUOT", ["pwrite Disk quota exceeded", "pwritev Disk quota exceeded"]),
        ("fsync:file:1:*:EIO", ["fsync Input/output error", "fdatasync Input/output error"]),
        ("truncate:file:1:ENOSPC", ["ftruncate No space left on device"]),
        ("read:file:1:*:ESTALE", ["pread Stale file handle", "preadv Stale file handle"]),
        ("truncate:/*fi*e:1:ENOSPC", ["ftruncate No space left on device"]),
        ("open:file:2:EROFS", ["open Read-only file system"]),
        ("rename:/renamed:1:EACCES", ["rename Permission denied", "unlink No such file or directory"]),
        ("rename:/file:1:EACCES", ["rename Permission denied", "unlink No such file or directory"]),
        ("mkdir:folder:1:EROFS", ["mkdir Read-only file system", "rmdir No such file or directory"]),
        ("unlink:folder:1:EIO", ["rmdir Input/output error"]),
    ],
)
def test_errors(injector: Injector, tmp_path: Path, rule: str, said: list[str]) -> None:
    code, lines = run(injector, tmp_path, rule, rank=0, OMPI_COMM_WORLD_RANK="0")
    assert (code, failing(lines)) == (0, said)
    call, path, action = injector.struck()[0]
    assert (call, path.startswith(str(tmp_path)), action) == (rule.split(":")[0], True, rule.split(":")[-1])


def test_several_rules_count_for_themselves(injector: Injector, tmp_path: Path) -> None:
    _, lines = run(injector, tmp_path, "write:file:1:EIO", "any:file:4:ENOSPC", "read:file:1:ESTALE")
    assert failing(lines) == ["write Input/output error", "write No space left on device", "pread Stale file handle"]
    assert [call for call, _, _ in injector.struck()] == ["write", "write", "read"]


def test_a_call_that_is_said_to_succeed(injector: Injector, tmp_path: Path) -> None:
    for rule, locked, size in (("flock:/locked:2:zero", False, 100), ("truncate:/file:1:zero", True, 12)):
        code, lines = run(injector, tmp_path, rule)
        assert (code, failing(lines)) == (0, [])
        assert (LOCKED in lines, lines[-1]) == (locked, f"size {size}")


def test_death_before_and_after_a_call(injector: Injector, tmp_path: Path) -> None:
    for action, content in (("kill", b"text"), ("kill-after", b"texttext")):
        code, _ = run(injector, tmp_path, f"write:/file:2:{action}")
        assert code == -9
        assert (tmp_path / "file").read_bytes() == content
        (tmp_path / "file").unlink()


def test_a_slow_call(injector: Injector, tmp_path: Path) -> None:
    began = time.monotonic()
    code, lines = run(injector, tmp_path, "fsync:file:1:2:sleep=0.4")
    assert (code, failing(lines)) == (0, [])
    assert time.monotonic() - began > 0.8


def test_a_rule_that_makes_no_sense_is_told(injector: Injector, tmp_path: Path) -> None:
    for rule in ("write:a", "wite:a:1:EIO", "write:a:0:EIO", "write:a:1:0:EIO", "write:a:1:EWHAT", "a:b:1:2:EIO:f"):
        done = run_program(["true"], tmp_path, 10, **injector.env(rule))
        assert (done.returncode, done.stderr.startswith("INJECT: ")) == (99, True), rule

"""Which calls pack.py counts, what it makes of them, and what it asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from packed.calls import check_strace, count
from packed.page import PACKED, RANK, SECS, SHARED, STARTS, make_page, records, targets
from support.page import as_text
from support.records import Found
from support.usage import UsageError

LINES = """\
7 execve("/v/bin/python", ["python", "-c", "import a"], 0x7ff /* 9 vars */) = 0
7 openat(AT_FDCWD</w>, "/v/lib/a.py", O_RDONLY|O_CLOEXEC) = 3</v/lib/a.py>
8 newfstatat(3</v/lib/a.py>, "", {st_mode=S_IFREG|0644, ...}, AT_EMPTY_PATH) = 0
7 newfstatat(AT_FDCWD</w>, "/v/lib/b.so", 0x7ff, 0) = -1 ENOENT (No such file or directory)
7 getdents64(4</v>, 0x55 /* 3 entries */, 32768) = 80
8 openat(5</v/lib>, "c.py", O_RDONLY <unfinished ...>
8 <... openat resumed>) = 6</v/lib/c.py>
7 readlink("/p/lib/../lib/d", "e", 4096) = 1
7 openat(AT_FDCWD</w>, "/venv/lib/a.py", O_RDONLY) = 3</venv/lib/a.py>
7 openat(AT_FDCWD</w>, "v/a.py", O_RDONLY) = 3</w/v/a.py>
7 openat(AT_FDCWD</w>, "/tmp/v/a \\"/v/\\"", O_RDONLY) = 3
7 +++ exited with 0 +++
"""


def test_calls_are_counted_by_the_folder_that_they_name() -> None:
    lines = LINES.splitlines()
    assert count(lines, [Path("/v")]) == 6
    assert count(lines, [Path("/v/lib"), Path("/p")]) == 5
    assert count(lines, [Path("/w")]) == 1
    assert count(lines, [Path("/none")]) == 0


@pytest.mark.parametrize(("rank", "start", "reached"), [(50.0, 0.0, True), (51.0, 0.0, False), (0.0, 51.0, False)])
def test_a_rank_and_a_start_have_to_ask_less(rank: float, start: float, reached: bool) -> None:
    kept = [
        *records(RANK, "calls", {SHARED: [1000.0], PACKED: [rank]}, 2, {SHARED: 1100.0, PACKED: 1200.0}),
        *records(STARTS, "calls", {SHARED: [1000.0], PACKED: [start]}, 64, {SHARED: 1100.0, PACKED: 1200.0}),
        *records(SECS, "s", {SHARED: [2.0, 2.0], PACKED: [2.2, 2.2]}, 2),
    ]
    assert [target.reached for target in targets(Found(kept))] == [reached, False]
    text, _ = as_text(make_page(kept), "today")
    assert "1,100" in text or "1100" in text
    assert [target.reached for target in targets(Found(kept[:2]))] == [rank <= 50, False], "not measured"


def test_strace_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no strace on PATH, which counts calls: apt-get install strace"):
        check_strace()
    (tmp_path / "strace").write_text("#!/bin/sh\necho 'ptrace: Operation not permitted' >&2\nexit 1\n")
    (tmp_path / "strace").chmod(0o755)
    with pytest.raises(UsageError, match="cannot count calls here: ptrace: Operation not permitted"):
        check_strace()

"""What a job prints, read from its files while they grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import UserError
from hpc_train.jobs import logs
from hpc_train.jobs.logs import JobOutput, Line, follow, last_lines, rank_files


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def append(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(text)


def prints(job_dir: Path, text: bytes) -> None:
    append(job_dir / "logs/job.out", text)


def rank_prints(job_dir: Path, run: int, rank: str, stream: str, text: bytes) -> None:
    append(job_dir / f"logs/run-{run}/1/rank.{rank}/{stream}", text)


def texts(lines: Iterator[Line]) -> list[str]:
    return [line.text for line in lines]


def test_lines_come_once_and_whole(job_dir: Path) -> None:
    output = JobOutput(job_dir, None)
    assert list(output.new_lines()) == []
    prints(job_dir, b"one\ntw")
    assert list(output.new_lines()) == [Line("one", None, None)]
    assert list(output.new_lines()) == []
    prints(job_dir, b"o\n\nthr")
    assert texts(output.new_lines()) == ["two", ""]
    prints(job_dir, b"ee")
    assert texts(output.new_lines(last=True)) == ["three"]
    assert texts(output.new_lines(last=True)) == []


@given(st.lists(st.binary(max_size=6), max_size=8), st.integers(1, 9))
def test_lines_are_those_of_the_file_however_they_come(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], chunk: int
) -> None:
    job_dir = tmp_path_factory.getbasetemp() / "pieces"
    log = job_dir / "logs/job.out"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    output, found = JobOutput(job_dir, None), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "CHUNK_BYTES", chunk)
        for piece in pieces:
            prints(job_dir, piece)
            found += texts(output.new_lines())
        found += texts(output.new_lines(last=True))
    *lines, rest = b"".join(pieces).split(b"\n")
    expected = [*lines, rest] if rest else lines
    assert found == [line.decode(errors="replace").rstrip("\r") for line in expected]


def test_bytes_that_are_no_text(job_dir: Path) -> None:
    output = JobOutput(job_dir, None)
    prints(job_dir, b"caf\xe9 \xff\nsch\xc3")
    assert texts(output.new_lines()) == ["caf� �"]
    prints(job_dir, b"\xb6n\r\n\0\x1b[31m\n")
    assert texts(output.new_lines()) == ["schön", "\0\x1b[31m"], "a letter may come in two parts"


def test_lines_end_with_newlines_alone(job_dir: Path) -> None:
    prints(job_dir, "10%\r20%\r\nab\u2028c\x0bd\n".encode())
    assert texts(JobOutput(job_dir, None).new_lines()) == ["10%\r20%", "ab\u2028c\x0bd"]


def test_a_file_that_was_begun_anew(job_dir: Path) -> None:
    output = JobOutput(job_dir, None)
    prints(job_dir, b"of the first one\npart")
    assert texts(output.new_lines()) == ["of the first one"]
    (job_dir / "logs/job.out").write_bytes(b"new\n")
    assert texts(output.new_lines()) == ["new"]
    (job_dir / "logs/job.out").unlink()
    assert texts(output.new_lines(last=True)) == []


def test_the_last_lines(job_dir: Path) -> None:
    def of(count: int | None, last: bool) -> list[str]:
        return texts(last_lines(JobOutput(job_dir, None), count, last))

    assert of(3, True) == []
    prints(job_dir, b"1\n2\n3\n4")
    assert of(None, True) == ["1", "2", "3", "4"]
    assert of(2, True) == ["3", "4"]
    assert of(None, False) == ["1", "2", "3"], "the rest of the fourth is to come"
    assert of(2, False) == ["2", "3"]
    assert of(0, True) == []
    assert of(99, True) == ["1", "2", "3", "4"]


def test_what_comes_after_the_last_lines(job_dir: Path) -> None:
    output = JobOutput(job_dir, None)
    prints(job_dir, b"1\n2\n3")
    assert texts(last_lines(output, 1, False)) == ["2"]
    prints(job_dir, b"\n4\n")
    assert texts(output.new_lines()) == ["3", "4"]


def test_files_of_ranks_are_in_order(job_dir: Path) -> None:
    for run, rank, stream in ((10, "1", "stdout"), (2, "1", "stderr"), (2, "1", "stdout"), (2, "10", "stdout")):
        rank_prints(job_dir, run, rank, stream, b"")
    rank_prints(job_dir, 2, "2", "stderr", b"")
    for strange in (
        "run-x/1/rank.1/stdout",
        "run-2/1/rank.x/stdout",
        "run-2/1/rank.1/stdin",
        "run-2/1/rank.1/stdout.1",
    ):
        append(job_dir / "logs" / strange, b"strange\n")
    found = [(rank, str(path.relative_to(job_dir / "logs"))) for rank, path in rank_files(job_dir)]
    assert found == [
        (1, "run-2/1/rank.1/stdout"),
        (1, "run-2/1/rank.1/stderr"),
        (2, "run-2/1/rank.2/stderr"),
        (10, "run-2/1/rank.10/stdout"),
        (1, "run-10/1/rank.1/stdout"),
    ]
    assert rank_files(job_dir / "absent") == []


def test_what_one_rank_prints(job_dir: Path) -> None:
    prints(job_dir, b"of all\n")
    for run in (1, 0):
        for rank in ("00", "01", "11"):
            for stream in ("stderr", "stdout"):
                rank_prints(job_dir, run, rank, stream, f"{run} {rank} {stream}\n".encode())
    output = JobOutput(job_dir, 1)
    assert list(output.new_lines()) == [
        Line("0 01 stdout", 1, "stdout"),
        Line("0 01 stderr", 1, "stderr"),
        Line("1 01 stdout", 1, "stdout"),
        Line("1 01 stderr", 1, "stderr"),
    ]
    rank_prints(job_dir, 2, "01", "stdout", b"again")
    assert list(output.new_lines(last=True)) == [Line("again", 1, "stdout")]
    assert list(JobOutput(job_dir, 5).new_lines()) == JobOutput(job_dir, 5).files() == []
    assert texts(JobOutput(job_dir, None).new_lines()) == ["of all"]
    assert texts(last_lines(JobOutput(job_dir, 0), 1, True)) == ["1 00 stderr"]


def test_following_a_job_to_its_end(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked seldom whether the job has ended; what it prints before that is all there, to a line without end."""
    monkeypatch.setattr(logs, "ASK_EVERY_SECS", 0.05)
    monkeypatch.setattr(logs, "POLL_SECS", 0.01)
    asked = 0

    def has_ended() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            prints(job_dir, b" end\nno newline")
        return asked == 3

    output = JobOutput(job_dir, None)
    prints(job_dir, b"begin\nthe")
    found: list[str | None] = []
    for line in follow(output, has_ended):
        found.append(None if line is None else line.text)
        if asked == 1 and found[-1] is None and len(found) < 3:
            prints(job_dir, b" middle\nthe")
    assert [text for text in found if text is not None] == ["begin", "the middle", "the end", "no newline"]
    assert found[-1] == "no newline"
    assert found.count(None) > 2, "there is a pause in which others can be told of what has come"
    assert asked == 3


def test_following_a_job_that_has_ended_takes_no_time(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints(job_dir, b"1\n2")
    output = JobOutput(job_dir, None)
    assert texts(last_lines(output, None, False)) == ["1"]
    monkeypatch.setattr(logs.time, "sleep", lambda secs: pytest.fail("it waits"))
    assert [line and line.text for line in follow(output, lambda: True)] == ["2"]


def test_following_a_job_that_prints_nothing(job_dir: Path) -> None:
    assert list(follow(JobOutput(job_dir / "absent", None), lambda: True)) == []


@given(
    st.lists(st.sampled_from([b"", b"a", b"bcd", b"\n", b"\n\n", b"efghijk"]), max_size=12),
    st.integers(0, 9),
    st.booleans(),
)
def test_the_last_lines_are_the_last_of_all(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], count: int, last: bool
) -> None:
    """They are looked for in blocks from the end, which here are little longer than the longest line."""
    job_dir = tmp_path_factory.getbasetemp() / "last"
    log = job_dir / "logs/job.out"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"".join(pieces))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "LONGEST_LINE", len(" and more") + max(map(len, b"".join(pieces).split(b"\n"))))
        every = texts(last_lines(JobOutput(job_dir, None), None, last))
        output = JobOutput(job_dir, None)
        assert texts(last_lines(output, count, last)) == every[len(every) - min(count, len(every)) :]
        prints(job_dir, b" and more\n")
        rest = b"" if last else b"".join(pieces).rpartition(b"\n")[2]
        assert texts(output.new_lines()) == [(rest + b" and more").decode()]


def test_the_last_lines_of_several_files(job_dir: Path) -> None:
    for run in (0, 1, 2):
        rank_prints(job_dir, run, "0", "stdout", f"{run} a\n{run} b\n".encode())
    for count, expected in (
        (1, ["2 b"]),
        (3, ["1 b", "2 a", "2 b"]),
        (9, [f"{r} {t}" for r in (0, 1, 2) for t in "ab"]),
    ):
        assert texts(last_lines(JobOutput(job_dir, 0), count, True)) == expected


def test_a_long_line_comes_in_pieces(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A character is in one of them, and nothing is lost; the last line of -n may be the end of a longer one."""
    monkeypatch.setattr(logs, "LONGEST_LINE", 10)
    prints(job_dir, "äöü€äöü€äöü€\nshort\n".encode())
    found = texts(last_lines(JobOutput(job_dir, None), None, True))
    assert "".join(found[:-1]) == "äöü€äöü€äöü€" and found[-1] == "short"
    assert max(len(piece.encode()) for piece in found) <= 10
    prints(job_dir, b"x" * 95)
    output = JobOutput(job_dir, None)
    assert texts(last_lines(output, 2, False)) == ["x" * 10], "the rest may go on"
    prints(job_dir, b"y" * 5)
    assert texts(output.new_lines(last=True)) == ["x" * 10, "y" * 5]


def test_what_is_no_file_is_refused(job_dir: Path) -> None:
    (job_dir / "logs/job.out").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"job\.out: is a symbolic link, not a regular file"):
        list(JobOutput(job_dir, None).new_lines())

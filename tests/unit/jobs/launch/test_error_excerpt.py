"""What is found of an error in what the ranks have printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.jobs.launch.error_excerpt import MAX_LINES, READ_BYTES, RunOutput, error_in, last_words, lines_around

DASHES = "-" * 74
KILLED = f"""\
{DASHES}
mpirun noticed that process rank 3 with PID 7 on node n2 exited on signal 9 (Killed).
{DASHES}
"""
ABORT = f"""\
{DASHES}
MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
with errorcode 1.
{DASHES}
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    run()
KeyError: 'x'
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.out"


def rank_stderr(folder: Path, name: str, text: str) -> None:
    (folder / "1" / name).mkdir(parents=True)
    (folder / "1" / name / "stderr").write_text(text)


def test_a_rank_that_was_killed_is_named_with_its_own_last_lines(log: Path, tmp_path: Path) -> None:
    log.write_text(f"{TRACEBACK}{KILLED}")
    rank_stderr(tmp_path / "run-0", "rank.13", "not mine")
    rank_stderr(tmp_path / "run-0", "rank.03", "almost there\n")
    found = last_words(RunOutput(log, rank_logs=tmp_path / "run-0"))
    assert (found.rank, found.signal, found.lines) == (3, "SIGKILL", ("almost there",))
    assert found.message == "rank 3 on n2 was killed by SIGKILL"


def test_the_rank_that_called_abort_is_the_one(log: Path) -> None:
    log.write_text(TRACEBACK + ABORT + KILLED)
    found = last_words(RunOutput(log))
    assert (found.rank, found.signal, found.message) == (2, None, "KeyError: 'x'")
    assert found.lines[-1] == "KeyError: 'x'", "without what mpirun says"


def test_runs_before_this_one_do_not_count(log: Path) -> None:
    log.write_text(TRACEBACK + KILLED)
    begin = log.stat().st_size
    with open(log, "a") as file:
        file.write("fresh\n")
    found = last_words(RunOutput(log, begin))
    assert (found.rank, found.message, found.lines) == (None, None, ("fresh",))
    assert last_words(RunOutput(log, begin), 4).rank == 4, "as the launcher knows"


def test_of_a_long_output_the_end_is_read(log: Path) -> None:
    log.write_text(TRACEBACK + "x" * 2 * READ_BYTES + "\n" + "".join(f"line {number}\n" for number in range(50)))
    found = last_words(RunOutput(log))
    assert found.lines == tuple(f"line {number}" for number in range(50 - MAX_LINES, 50))
    assert found.message is None


def test_nothing_to_read_is_no_error(tmp_path: Path) -> None:
    found = last_words(RunOutput(tmp_path / "absent", 10, tmp_path / "absent"), 1)
    assert (found.rank, found.message, found.lines) == (1, None, ())


def test_the_last_traceback_is_the_error_and_its_message_may_have_lines() -> None:
    lines, message = error_in(f"{TRACEBACK}\nDuring handling:\n\n{TRACEBACK.replace('KeyError', 'OSError')}more\n")
    assert message == "OSError: 'x'"
    assert lines[0].startswith("Traceback")
    assert lines[-2:] == ("OSError: 'x'", "more")


def test_a_long_traceback_keeps_its_end() -> None:
    frames = "".join(f'  File "a.py", line {number}\n' for number in range(100))
    lines, message = error_in(f"Traceback (most recent call last):\n{frames}ValueError: no\n" + "noise\n" * 100)
    assert (message, len(lines)) == ("ValueError: no", MAX_LINES)
    assert "ValueError: no" in lines


def test_the_lines_that_are_shown_have_the_message_however_much_follows_it() -> None:
    text = "\n".join(
        [*map(str, range(40)), "ValueError: \x1b[1mtoo many\x1b[0m", *(f"argument {n}" for n in range(40))]
    )
    lines = lines_around(text, "ValueError: too many\nsecond line")
    assert len(lines) == MAX_LINES
    assert "ValueError: too many" in lines
    assert lines_around(text, "not there") == tuple(f"argument {n}" for n in range(20, 40))
    assert lines_around("", "x") == ()


def test_what_a_terminal_would_obey_is_taken_out() -> None:
    assert error_in("10 %\r20 %\r\x1b[31mred\x1b[0m\x07\r\n")[0] == ("red",)

"""Restarts are counted and end; what mpirun says of a rank's end is understood."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.jobs.launch.launcher_output import RankEnd, pump
from hpc_train.jobs.launch.mpirun_output import MpirunOutput, understand
from hpc_train.jobs.launch.supervisor import RunEnd, supervise, wait_secs
from tests.support import LIMIT_SECS

DASHES = "-" * 74 + "\n"
KILLED = f"""{DASHES}Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{DASHES}{DASHES}mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).
{DASHES}"""
LEFT = f"""{DASHES}mpirun has exited due to process rank 3 with PID 0 on
node n-1.example exiting improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in
the job did.

You can avoid this message by specifying -quiet on the mpirun command line.
{DASHES}"""
CODE = f"""{DASHES}mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[12106,1],2]
  Exit code:    7
{DASHES}"""
ABORT = f"""{DASHES}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 6.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
{DASHES}[vm:17293] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[vm:17293] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
"""
PRTE = CODE.replace("mpirun", "prterun").replace("[[12106,1],2]", "[prterun-vm-4711@1,2]")
INTEL = f"""
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 0 PID 5490 RUNNING AT gn59
=   KILLED BY SIGNAL: 9 (Killed)
{"=" * 83}
"""
MPICH = f"""
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 5318 RUNNING AT n1.local
=   EXIT CODE: 11
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{"=" * 83}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault: 11 (signal 11)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
NOTICES = {
    KILLED: ("rank 1 on vm was killed by SIGKILL", False),
    LEFT: ("rank 3 on n-1.example left without finishing", False),
    CODE: ("rank 2 left with code 7 without finishing", False),
    PRTE: ("rank 2 left with code 7 without finishing", False),
    ABORT: ("None", True),
    INTEL: ("rank 0 on gn59 was killed by SIGKILL", False),
    MPICH: ("a rank on n1.local was killed by SIGSEGV", False),
}


@given(st.sampled_from(list(NOTICES)), st.binary(max_size=40), st.lists(st.integers(1, 200), max_size=30))
def test_notices_of_mpirun_are_understood_and_left_out(notice: str, before: bytes, cuts: list[int]) -> None:
    """However the stream is cut, and after a line of a rank that has no end."""
    output, out = MpirunOutput(), b""
    before = before.replace(b"-", b"").replace(b"=", b"")
    rest = before + notice.encode() + b"last words\n"
    if notice in (ABORT, MPICH):  # their last lines stand alone, and come in one piece
        cuts = []
    for cut in cuts:
        out, rest = out + output.feed(rest[:cut]), rest[cut:]
    out += output.feed(rest) + output.flush()
    assert (str(output.end), output.reported) == NOTICES[notice]
    assert out == before + (b"\n" if notice in (INTEL, MPICH) else b"") + b"last words\n"


@given(
    st.lists(st.sampled_from([b"-", b"=", b"\n", b"-" * 74 + b"\n", b"=" * 83 + b"\n", b"word", b"\xff", b"[n:1] "]))
)
def test_what_ranks_write_comes_through_unchanged(parts: list[bytes]) -> None:
    output = MpirunOutput()
    assert b"".join(map(output.feed, parts)) + output.flush() == b"".join(parts)
    assert output.end is None
    assert not output.reported


@pytest.mark.parametrize("text", [b"progress 10 %\r", b"no end", b"line\n"])
def test_what_ranks_write_is_not_held(text: bytes) -> None:
    assert MpirunOutput().feed(text) == text


def test_a_line_of_dashes_waits_for_half_a_second_at_most() -> None:
    source, into = os.pipe()
    out, target = os.pipe()
    thread = threading.Thread(target=pump, args=(source, MpirunOutput(), target))
    thread.start()
    text = b"a table\n" + DASHES.encode()
    os.write(into, text)
    before, got = time.monotonic(), b""
    while len(got) < len(text):
        got += os.read(out, 1000)
    assert got == text
    assert time.monotonic() - before > 0.4
    os.close(into)
    thread.join(LIMIT_SECS)
    assert not thread.is_alive()
    os.close(out)
    os.close(target)


def test_the_first_rank_to_end_is_named_and_failures_are_known() -> None:
    output = MpirunOutput()
    assert output.feed(b"rank 1 failed:\nTraceback (most recent call last):\n") != b""
    assert output.reported
    output.feed(KILLED.encode() + LEFT.encode())
    assert output.end == RankEnd(1, "vm", signal=9)
    assert understand("anything else") is None
    assert RankEnd(0, signal=200).signal_name == "signal 200"


def test_waits_grow_to_a_minute() -> None:
    assert [wait_secs(n) for n in range(1, 9)] == [0, 2, 4, 8, 16, 32, 60, 60]
    assert wait_secs(10**6) == 60


class Runs:
    """Runs of a job that end with `codes` and leave checkpoints of `steps`, and what is said of them."""

    def __init__(self, codes: list[int], steps: list[int | None], stop_at_wait: int = 10**6) -> None:
        self.codes, self.steps, self.done = codes, steps, 0
        self.said: list[str] = []
        self.waits: list[float] = []
        self.stop_at_wait = stop_at_wait

    def run(self, restarts: int) -> RunEnd:
        assert restarts == self.done
        self.done += 1
        code = self.codes[min(restarts, len(self.codes) - 1)]
        return RunEnd(code, f"left with {code}", reported=code == 0)

    def newest(self) -> int | None:
        return self.steps[min(self.done, len(self.steps) - 1)]

    def wait(self, secs: float) -> bool:
        self.waits += [secs] if secs else []
        return len(self.waits) < self.stop_at_wait

    def supervise(self, max_restarts: int) -> int:
        return supervise(self.run, self.newest, max_restarts, self.wait, self.said.append)


def test_a_crashed_job_goes_on_from_its_newest_checkpoint() -> None:
    job = Runs([137, 6, 0], [None, None, 200, 400])
    assert job.supervise(3) == 0
    assert job.said == [
        "left with 137; restart 1 of 3 at once, from the beginning",
        "left with 6; restart 2 of 3 in 2 s, from step 200",
    ]
    assert job.waits == [2]


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5, 7, 8, 9, 130])
def test_what_is_no_crash_is_not_started_again(code: int) -> None:
    job = Runs([code], [0])
    assert job.supervise(3) == code
    assert (job.done, job.waits) == (1, [])


@pytest.mark.parametrize("code", [1, 6, 42, 134, 137, 139, 143, 205])
def test_the_budget_ends_a_crash_that_comes_again_and_again(code: int) -> None:
    job = Runs([code], [0, 10, 20, 30])
    assert job.supervise(2) == code
    assert job.done == 3
    assert job.said[-1] == f"left with {code}; not restarted: --max-restarts allows 2"
    job = Runs([code], [0])
    assert job.supervise(0) == code
    assert job.said == [f"left with {code}"]


def test_restarts_without_progress_end_early() -> None:
    job = Runs([137], [100])
    assert job.supervise(50) == 137
    assert job.done == 4
    assert job.said[-1] == "left with 137; not restarted: 3 restarts in a row have not come beyond step 100"
    job = Runs([137], [None, None, None, 10, 10, 10, 10])
    job.supervise(50)
    assert job.done == 6, "one that made progress counts anew"
    job = Runs([137], [None])
    job.supervise(50)
    assert job.said[-1].endswith("have not come beyond the beginning")


def test_a_stop_ends_the_wait() -> None:
    job = Runs([137], [0], stop_at_wait=1)
    assert job.supervise(5) == 137
    assert job.done == 2
    assert job.said[-1] == "not restarted: it was asked to stop"
    job = Runs([137], [0], stop_at_wait=0)
    assert job.supervise(5) == 137
    assert job.said == ["left with 137; not restarted: it was asked to stop"]


def test_that_signals_are_passed_on_is_left_out() -> None:
    output = MpirunOutput()
    assert output.feed(b"a line\nmpirun: Forwarding signal 10 to job\nanother: Forwarding signals\n") == (
        b"a line\nanother: Forwarding signals\n"
    )

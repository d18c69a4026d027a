"""The watchdog: who is blamed for a job that stands still, and when it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.resilience import watchdog as module
from hpc_train.resilience.bounded import Bounded
from hpc_train.resilience.stall import Report, Verdict, judge
from hpc_train.resilience.stall_folder import StallFolder
from hpc_train.resilience.watchdog import Watchdog
from tests.support import LIMIT_SECS, environment, wait_for

TIMEOUT = 2.0
LONGER = 5.0


def places(size: int) -> list[str]:
    return [f"host n{rank}, pid {100 + rank}" for rank in range(size)]


def verdict_on(*said: tuple[str, int] | None, secs: float = 601.0) -> Verdict | None:
    """On ranks that say (phase, step), or nothing."""
    reports = {r: Report(r, f"n{r}", 100 + r, *s, secs) for r, s in enumerate(said) if s is not None}
    return judge(reports, places(len(said)), 600.4, 600)


STEP = ("training step", 41)
INPUT = ("waiting for input", 41)
OTHERS = ("waiting for the others (export)", 41)


@pytest.mark.parametrize(
    ("said", "blamed", "text"),
    [
        (
            (STEP, None, STEP),
            (1,),
            "rank 1 (host n1, pid 101) stopped answering: no word of it for 600 s; the others: training step 41",
        ),
        ((None, STEP), (0,), "the other: training step 41"),
        (
            (STEP, None, None),
            (1, 2),
            "ranks 1 (host n1, pid 101), 2 (host n2, pid 102) stopped answering: no word of t",
        ),
        ((STEP, None, INPUT), (1,), "the others: training step 41 (rank 0), waiting for input at step 41 (rank 2)"),
        (
            (STEP, INPUT, STEP),
            (1,),
            "(host n1, pid 101) has not moved for 601 s: waiting for input at step 41; the oth",
        ),
        ((("training step", 42), INPUT, INPUT), (1, 2), "have not moved for 601 s: waiting for input at step 41"),
        ((STEP, ("waiting for input", 42)), (1,), "waiting for input at step 42"),
        ((STEP, ("training step", 40), ("evaluation", 40)), (1, 2), "training step 40 (rank 1), evaluation at step 40"),
        (
            (("export", 41), OTHERS),
            (0,),
            "not moved for 601 s: export at step 41; the other: waiting for the others (e",
        ),
        ((OTHERS, ("evaluation", 41), OTHERS), (1,), "evaluation at step 41"),
        ((STEP, STEP, STEP), (), "all 3 ranks have not moved for 600 s: training step 41; none can be singled out"),
        ((INPUT, INPUT), (), "all 2 ranks have not moved for 600 s: waiting for input at step 41; look at the data"),
        ((INPUT,), (0,), "rank 0 (host n0, pid 100) has not moved for 601 s: waiting for input at step 41"),
        ((("export", 7),), (0,), "export at step 7"),
    ],
)
def test_who_is_blamed(said: tuple, blamed: tuple[int, ...], text: str) -> None:
    verdict = verdict_on(*said)
    assert verdict is not None
    assert verdict.blamed == blamed, verdict
    assert text in verdict.message


def test_a_rank_that_moves_is_waited_for_but_one_that_is_silent_is_not() -> None:
    standing = Report(0, "n0", 100, "waiting for the others (evaluation)", 41, 700.0)
    moving = Report(1, "n1", 101, "evaluation", 41, 3.0)
    assert judge({0: standing, 1: moving}, places(2), 700, 600) is None
    verdict = judge({0: standing, 1: moving}, places(3), 700, 600)
    assert verdict is not None
    assert verdict.blamed == (2,)


def test_many_ranks_are_counted_not_listed() -> None:
    verdict = verdict_on(*[STEP if rank < 30 else None for rank in range(50)])
    assert verdict is not None
    assert len(verdict.blamed) == 20
    assert "37 (host n37, pid 137) and 12 more stopped answering" in verdict.message
    assert "host n38" not in verdict.message
    verdict = verdict_on(*[("evaluation", rank) for rank in range(50)])
    assert verdict is not None
    assert len(verdict.message) < 1000


PHASES = ["training step", "waiting for input", "evaluation", "export", "waiting for the others (export)"]
said_by_a_rank = st.one_of(st.none(), st.tuples(st.sampled_from(PHASES), st.integers(0, 3)))


@given(st.lists(said_by_a_rank, min_size=1, max_size=12).filter(any))
def test_blame_holds_for_any_reports(said: list[tuple[str, int] | None]) -> None:
    verdict = verdict_on(*said)
    assert verdict is not None
    silent = tuple(rank for rank, s in enumerate(said) if s is None)
    assert verdict.blamed == tuple(sorted(verdict.blamed))
    assert set(verdict.blamed) <= set(range(len(said)))
    if silent:
        assert verdict.blamed == silent
    else:
        assert len(verdict.blamed) < len(said) or len(said) == 1, "all of several are never blamed"
        if not verdict.blamed:
            waits = {phase.startswith("waiting for ") for phase, _ in said}
            assert len(waits) == len({step for _, step in said}) == 1
    for rank in verdict.blamed[:8]:
        assert f"{rank} (host n{rank}, pid {100 + rank})" in verdict.message


@dataclass
class Ranks:
    """Watchdogs of several ranks in this process, and what they said when they ended the job."""

    folder: Path
    size: int
    timeout_secs: float = TIMEOUT
    ended: list[tuple[float, int, str, int | None]] = field(default_factory=list)
    dogs: dict[int, Watchdog] = field(default_factory=dict)

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            end = lambda message, blamed, rank=rank: self.ended.append((time.monotonic(), rank, message, blamed))
            dog = Watchdog(rank, self.size, f"n{rank}", self.folder, self.timeout_secs, end, places(self.size))
            self.dogs[rank] = dog.__enter__()

    def stop(self) -> None:
        for dog in self.dogs.values():
            dog.__exit__(None, None, None)
        self.dogs.clear()

    def wait(self, secs: float, until: Callable[[], object] | None = None, moving: tuple[int, ...] = ()) -> float:
        begin, step = time.monotonic(), 100
        while time.monotonic() - begin < secs and not (until or (lambda: self.ended))():
            for rank in moving:
                step += 1
                self.dogs[rank].at("evaluation", step)
            time.sleep(0.02)
        return time.monotonic() - begin


@pytest.fixture
def make_ranks(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(size: int, **options: float) -> Ranks:
        made.append(Ranks(tmp_path / "logs" / "stall-1", size, **options))
        return made[-1]

    yield make
    for ranks in made:
        ranks.stop()


def test_a_silent_rank_is_named_once_at_the_timeout(make_ranks: Callable[..., Ranks]) -> None:
    ranks = make_ranks(3)
    ranks.start(0, 2)
    for rank in (0, 2):
        ranks.dogs[rank].at("training step", 41)
    took = ranks.wait(LIMIT_SECS)
    assert took >= TIMEOUT
    time.sleep(2.5)
    assert len(ranks.ended) == 1, ranks.ended
    _, judge_rank, message, blamed = ranks.ended[0]
    assert (judge_rank, blamed) == (0, 1)
    assert message.startswith("rank 1 (host n1, pid 101) stopped answering: no word of it for 2 s; ")
    assert f"stall_timeout_secs=2; what the ranks were doing: {ranks.folder}" in message
    report = json.loads((ranks.folder / "rank-2.json").read_text())
    assert {k: report[k] for k in ("rank", "host", "phase", "step")} == {
        "rank": 2, "host": "n2", "phase": "training step", "step": 41,
    }  # fmt: skip
    assert report["secs"] >= TIMEOUT / 2
    assert any(f"{__file__}:" in line for stack in report["stacks"].values() for line in stack)


def test_the_chief_may_be_the_silent_one(make_ranks: Callable[..., Ranks]) -> None:
    ranks = make_ranks(3)
    ranks.start(1, 2)
    ranks.wait(LIMIT_SECS)
    assert [(rank, blamed) for _, rank, _, blamed in ranks.ended] == [(1, 0)]


def test_a_judge_that_dies_at_its_work_is_stood_in_for(make_ranks: Callable[..., Ranks]) -> None:
    """Rank 0 has reported, then does no more; rank 2 never did."""
    ranks = make_ranks(3)
    ranks.start(0, 1)
    ranks.wait(LIMIT_SECS, until=lambda: (ranks.folder / "rank-0.json").exists())
    ranks.dogs.pop(0)._stop.set()
    ranks.wait(LIMIT_SECS)
    assert [rank for _, rank, _, _ in ranks.ended] == [1]
    assert "2 (host n2, pid 102) stopped answering" in ranks.ended[0][2]


def test_a_verdict_that_is_not_carried_out_is_carried_out_by_another(
    make_ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_SECS", 1.0)
    ranks = make_ranks(2)
    ranks.start(1)
    ranks.wait(LIMIT_SECS, until=ranks.folder.exists)
    (ranks.folder / "verdict.txt").write_text("rank 0 said so\n")
    ranks.wait(LIMIT_SECS)
    assert ranks.ended[0][2].startswith("rank 0 said so; ended because")


def test_nothing_is_written_while_all_move_and_reports_go_when_they_move_again(
    make_ranks: Callable[..., Ranks],
) -> None:
    ranks = make_ranks(2, timeout_secs=LONGER)
    ranks.start(0, 1)
    ranks.wait(1.3 * LONGER, until=ranks.folder.exists, moving=(0, 1))
    assert not ranks.folder.exists()
    ranks.wait(LIMIT_SECS, until=lambda: (ranks.folder / "rank-0.json").exists())
    assert ranks.folder.exists()
    ranks.wait(LIMIT_SECS, until=lambda: not ranks.folder.exists(), moving=(0, 1))
    assert not ranks.folder.exists()
    assert not ranks.ended


def test_a_slow_rank_is_waited_for_as_long_as_it_moves(make_ranks: Callable[..., Ranks]) -> None:
    """Rank 0 has no more to evaluate, rank 1 has; then rank 1 stands still, too."""
    ranks = make_ranks(2, timeout_secs=LONGER)
    ranks.start(0, 1)
    ranks.dogs[0].at("evaluation", 7)
    ranks.dogs[0].waits(True)
    ranks.wait(1.7 * LONGER, moving=(1,))
    assert not ranks.ended
    assert (ranks.folder / "answer-1.json").exists()
    ranks.dogs[1].at("evaluation", 7)
    took = ranks.wait(LIMIT_SECS)
    assert took >= LONGER
    assert ranks.ended[0][3] == 1
    assert "has not moved for 5 s: evaluation at step 7; the other: waiting for the others (ev" in ranks.ended[0][2]


def test_a_rank_alone(make_ranks: Callable[..., Ranks]) -> None:
    ranks = make_ranks(1)
    ranks.start(0)
    ranks.dogs[0].at("waiting for input", 3)
    took = ranks.wait(LIMIT_SECS)
    assert took >= TIMEOUT
    assert "rank 0 (host n0, pid 100) has not moved for 2 s: waiting for input at step 3; ended" in ranks.ended[0][2]
    assert ranks.ended[0][3] == 0


def test_waiting_for_others_is_part_of_a_phase(make_ranks: Callable[..., Ranks]) -> None:
    dog = Watchdog(0, 1, "n0", make_ranks(1).folder, 0, lambda message, blamed: None)
    dog.at("export", 3)
    dog.waits(True)
    dog.waits(True)
    assert dog._mark[:2] == ("waiting for the others (export)", 3)
    dog.waits(False)
    dog.waits(False)
    assert dog._mark[:2] == ("export", 3)


def test_leaving_ends_the_watch_and_removes_the_folder(make_ranks: Callable[..., Ranks]) -> None:
    ranks = make_ranks(2)
    ranks.start(0, 1)
    ranks.wait(LIMIT_SECS, until=lambda: (ranks.folder / "rank-1.json").exists())
    ranks.stop()
    assert not ranks.folder.exists()
    time.sleep(TIMEOUT / 2 + 0.5)
    assert not ranks.ended


def test_a_job_that_ends_while_the_judge_decides_has_ended_normally(
    make_ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    deciding, go_on = threading.Event(), threading.Event()
    read = StallFolder.read

    def slow_read(self: StallFolder) -> dict[int, Report]:
        found = read(self)
        deciding.set()
        go_on.wait(LIMIT_SECS)
        return found

    monkeypatch.setattr(StallFolder, "read", slow_read)
    ranks = make_ranks(2, timeout_secs=2.5)
    ranks.start(0)
    assert deciding.wait(LIMIT_SECS)
    leaving = threading.Thread(target=ranks.stop)
    leaving.start()
    time.sleep(0.3)
    go_on.set()
    leaving.join(LIMIT_SECS)
    assert not leaving.is_alive()
    assert not ranks.ended


def test_a_rank_that_moves_while_the_judge_decides_takes_the_verdict_back(
    make_ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = make_ranks(2)
    claim = StallFolder.claim

    def claim_late(self: StallFolder, message: str) -> bool:
        ranks.dogs[0].at("training step", 42)
        return claim(self, message)

    monkeypatch.setattr(StallFolder, "claim", claim_late)
    ranks.start(0)
    ranks.wait(TIMEOUT + 1)
    assert not ranks.ended
    assert not (ranks.folder / "verdict.txt").exists()


def test_a_job_dir_that_does_not_answer_does_not_keep_the_job_alive(
    make_ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    monkeypatch.setattr(StallFolder, "report", lambda self, fields: hang.wait(3600) and None)
    ranks = make_ranks(2)
    ranks.start(0)
    ranks.dogs[0].at("checkpoint", 5)
    took = ranks.wait(LIMIT_SECS)
    hang.set()
    assert took >= TIMEOUT
    message, blamed = ranks.ended[0][2:]
    assert "rank 0 (host n0, pid 100) has not moved for" in message
    assert (
        f"checkpoint at step 5; it cannot ask the others, since the job-dir does not answer: {ranks.folder};" in message
    )
    assert blamed is None


def test_a_job_dir_that_cannot_be_written_is_named(make_ranks: Callable[..., Ranks]) -> None:
    ranks = make_ranks(2)
    ranks.folder.parent.parent.mkdir(exist_ok=True)
    ranks.folder.parent.write_text("a file in the folder's place")
    ranks.start(0)
    ranks.wait(LIMIT_SECS)
    assert "since the job-dir cannot be used: [Errno" in ranks.ended[0][2]


def test_a_hanging_call_is_given_up_and_not_repeated() -> None:
    hang, bounded, called = threading.Event(), Bounded(2.0), []
    assert bounded.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        bounded.call(lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        bounded.call(lambda: hang.wait(3600))
    with pytest.raises(TimeoutError):
        bounded.call(lambda: called.append(5))
    assert not called
    hang.set()

    def answers() -> bool:
        with suppress(TimeoutError):
            return bounded.call(lambda: 6) == 6
        return False

    wait_for(answers, "a call is carried out again")


STOPPED = """
import os, sys, time
from pathlib import Path
from hpc_train.resilience.watchdog import Watchdog

def end(message, blamed):
    os.write(1, f"{time.time()}".encode())
    os._exit(6)

with Watchdog(0, 1, "here", Path(sys.argv[1]), 3.0, end) as watchdog:
    watchdog.at("training step", 1)
    print("watching", flush=True)
    time.sleep(3600)
"""


def test_a_process_that_was_stopped_counts_anew_when_it_goes_on(tmp_path: Path) -> None:
    program = [sys.executable, "-c", STOPPED, str(tmp_path / "stall")]
    with subprocess.Popen(program, env=environment(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"watching\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(5)
            process.send_signal(signal.SIGCONT)
            went_on = time.time()
            out, _ = process.communicate(timeout=LIMIT_SECS)
        finally:
            process.kill()
    assert process.returncode == 6
    assert float(out) - went_on > 2.5


def test_zero_seconds_is_no_watch(tmp_path: Path) -> None:
    before = threading.active_count()
    with Watchdog(0, 2, "n0", tmp_path / "stall", 0, lambda message, blamed: os._exit(6)) as dog:
        dog.at("training step", 1)
        assert threading.active_count() == before


def test_moving_on_costs_next_to_nothing(tmp_path: Path) -> None:
    with Watchdog(0, 2, "n0", tmp_path / "stall", 600, lambda message, blamed: None) as dog:
        runs = timeit.repeat(lambda: dog.at("training step", 41), timer=time.thread_time, number=10_000, repeat=7)
        secs = min(runs) / 10_000  # of the processor, however busy the machine is
    assert secs < 1e-4

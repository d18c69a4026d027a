"""The watchdog: who is blamed for a job that stands still, and when it is ended."""

from __future__ import annotations

import json
import os
import threading
import time
import timeit
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.resilience import stall_folder
from hpc_train.resilience.bounded import Bounded
from hpc_train.resilience.places import Places, place_of
from hpc_train.resilience.stall import Report, Verdict, judge
from hpc_train.resilience.stall_folder import StallFolder
from hpc_train.resilience.watchdog import GRACE_SECS, TRAINING, Watchdog
from hpc_train.telemetry.json_files import write_json
from tests.support import LIMIT_SECS, wait_for

TIMEOUT, LONG = 60.0, 600.0
"""Seconds of the ranks' own time: until a job that stands still is ended; longer than any of it takes."""


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


class AtOnce:
    """In the place of Bounded: calls are made at once, in the caller's thread, however long the machine takes."""

    limit_secs = 10.0

    def call(self, action: Callable[[], object]) -> object:
        return action()


@dataclass
class Ranks:
    """Watchdogs of several ranks in this process, which look as time goes by, and what they said to end the job.

    The time is one of its own, that of files in the folder, too: nothing here depends on how busy the machine is.
    """

    folder: Path
    size: int
    now: float = 1_000_000.0
    ended: list[tuple[float, int, str, int | None]] = field(default_factory=list)
    dogs: dict[int, Watchdog] = field(default_factory=dict)

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            end = lambda message, blamed, rank=rank: self.ended.append((self.now, rank, message, blamed))
            where = f"n{rank}", places(self.size), self.folder
            dog = Watchdog(rank, *where, TIMEOUT, end, clock=lambda: self.now)
            dog._files = AtOnce()  # type: ignore[assignment]
            self.dogs[rank] = dog

    def wait(self, secs: float, until: Callable[[], object] | None = None, moving: tuple[int, ...] = ()) -> float:
        """Lets time go by until the job is ended, or `until` holds; returns the seconds that it took, at most `secs`.

        Ranks `moving` move on all the while.
        """
        begin = self.now
        while self.now - begin < secs and not (until or (lambda: self.ended))():
            self.now += 1.0
            for rank, dog in self.dogs.items():
                if rank in moving:
                    dog.at("evaluation", int(self.now))
                if not dog._stop.is_set():
                    dog.look()
        return self.now - begin


@pytest.fixture
def make_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Ranks]:
    def make(size: int) -> Ranks:
        ranks = Ranks(tmp_path / "logs" / "stall-1", size)

        def write(path: Path, content: object) -> None:
            write_json(path, content)
            os.utime(path, (ranks.now, ranks.now))

        monkeypatch.setattr(stall_folder, "write_json", write)
        return ranks

    return make


def test_a_silent_rank_is_named_once_at_the_timeout(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(3)
    ranks.start(0, 2)
    for rank in (0, 2):
        ranks.dogs[rank].at("training step", 41)
    took = ranks.wait(LONG)
    assert TIMEOUT <= took <= TIMEOUT + 15
    ranks.wait(GRACE_SECS / 2, until=lambda: False)
    assert len(ranks.ended) == 1, ranks.ended
    _, judge_rank, message, blamed = ranks.ended[0]
    assert (judge_rank, blamed) == (0, 1)
    assert message.startswith("rank 1 (host n1, pid 101) stopped answering: no word of it for 60 s; ")
    assert f"stall_timeout_secs=60; what the ranks were doing: {ranks.folder}" in message
    report = json.loads((ranks.folder / "rank-2.json").read_text())
    assert {k: report[k] for k in ("rank", "host", "phase", "step")} == {
        "rank": 2, "host": "n2", "phase": "training step", "step": 41,
    }  # fmt: skip
    assert report["secs"] >= TIMEOUT / 2
    assert any(f"{__file__}:" in line for stack in report["stacks"].values() for line in stack)


def test_who_has_left_is_not_missed_by_any_rank(make_ranks: Callable[[int], Ranks]) -> None:
    """Rank 1 is lost. Rank 0 waits for long, rank 2 moves on; then it does not."""
    ranks = make_ranks(3)
    ranks.start(0, 2)
    for dog in ranks.dogs.values():
        dog.gone = lambda: {1}
    ranks.dogs[0].at("waiting for gradients", None)
    assert ranks.wait(3 * TIMEOUT, moving=(2,)) == 3 * TIMEOUT
    assert TIMEOUT <= ranks.wait(LONG) <= TIMEOUT + 15
    assert [blamed for _, _, _, blamed in ranks.ended] == [2]


def test_the_last_word_of_a_rank_that_has_left_does_not_count() -> None:
    said = {0: STEP, 1: INPUT, 2: STEP}
    reports = {rank: Report(rank, f"n{rank}", 100 + rank, *words, 601.0) for rank, words in said.items()}
    assert judge(reports, places(3), 600, 600).blamed == (1,)  # type: ignore[union-attr]
    verdict = judge(reports, places(3), 600, 600, {1})
    assert verdict is not None and not verdict.blamed and verdict.message.startswith("all 2 ranks have not moved")


def test_the_chief_may_be_the_silent_one(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(3)
    ranks.start(1, 2)
    ranks.wait(LONG)
    assert [(rank, blamed) for _, rank, _, blamed in ranks.ended] == [(1, 0)]


def test_a_judge_that_dies_at_its_work_is_stood_in_for(make_ranks: Callable[[int], Ranks]) -> None:
    """Rank 0 has reported, then does no more; rank 2 never did."""
    ranks = make_ranks(3)
    ranks.start(0, 1)
    ranks.wait(LONG, until=lambda: (ranks.folder / "rank-0.json").exists())
    ranks.dogs.pop(0)
    ranks.wait(LONG)
    assert [rank for _, rank, _, _ in ranks.ended] == [1]
    assert "2 (host n2, pid 102) stopped answering" in ranks.ended[0][2]


def test_a_verdict_that_is_not_carried_out_is_carried_out_by_another(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(2)
    ranks.start(1)
    ranks.wait(LONG, until=ranks.folder.exists)
    (ranks.folder / "verdict.txt").write_text("rank 0 said so\n")
    ranks.wait(LONG)
    assert ranks.ended[0][2].startswith("rank 0 said so; ended because")


def test_nothing_is_written_while_all_move_and_reports_go_when_they_move_again(
    make_ranks: Callable[[int], Ranks],
) -> None:
    ranks = make_ranks(2)
    ranks.start(0, 1)
    ranks.wait(3 * TIMEOUT, until=ranks.folder.exists, moving=(0, 1))
    assert not ranks.folder.exists()
    ranks.wait(LONG, until=lambda: (ranks.folder / "rank-0.json").exists())
    assert ranks.folder.exists()
    ranks.wait(LONG, until=lambda: not ranks.folder.exists(), moving=(0, 1))
    assert not ranks.folder.exists()
    assert not ranks.ended


def test_a_rank_finds_those_below_that_can_judge_without_the_names_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the lowest ranks stall; else those in between count, whatever the order of the folder."""
    folders = {rank: StallFolder(tmp_path / "stall", rank, 100) for rank in (0, 1, 2, 5, 9, 11, 30)}
    for rank, folder in folders.items():
        folder.report({"rank": rank, "host": "n", "pid": 1, "phase": "start", "step": 0, "secs": 1.0})
    assert [folders[rank].lower(4) for rank in (0, 1, 5, 9, 11, 30)] == [0, 1, 3, 4, 4, 4]
    assert folders[11].lower(2) == 2 and folders[30].lower(9) == 6
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} was listed"))
    assert folders[30].lower(3) == 3


def test_places_of_other_ranks_are_looked_up_when_they_are_named(tmp_path: Path) -> None:
    found = Places(tmp_path, 3, 1, place_of("n1", 7))
    assert (len(found), found[1]) == (3, "host n1, pid 7")
    ranks = [{"rank": 0, "host": "n0", "pid": 5}, {"rank": 1, "host": "old", "pid": 1}, "no entry", {"rank": "2"}]
    (tmp_path / "environment.json").write_text(json.dumps({"ranks": ranks}))
    assert list(found) == ["host n0, pid 5", "host n1, pid 7", "host unknown"]
    assert found[:2] == ["host n0, pid 5", "host n1, pid 7"]
    nowhere = Places(tmp_path / "missing", 2, 0, "here")
    assert [nowhere[0], nowhere[1]] == ["here", "host unknown"]


def test_a_slow_rank_is_waited_for_as_long_as_it_moves(make_ranks: Callable[[int], Ranks]) -> None:
    """Rank 0 has no more to evaluate, rank 1 has; then rank 1 stands still, too."""
    ranks = make_ranks(2)
    ranks.start(0, 1)
    ranks.dogs[0].at("evaluation", 7)
    ranks.dogs[0].waits(True)
    ranks.wait(5 * TIMEOUT, moving=(1,))
    assert not ranks.ended
    assert (ranks.folder / "answer-1.json").exists()
    ranks.dogs[1].at("evaluation", 7)
    took = ranks.wait(LONG)
    assert TIMEOUT <= took <= TIMEOUT + 15
    assert ranks.ended[0][3] == 1
    assert "has not moved for 60 s: evaluation at step 7; the other: waiting for the others (ev" in ranks.ended[0][2]


def test_a_rank_alone(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(1)
    ranks.start(0)
    ranks.dogs[0].at("waiting for input", 3)
    took = ranks.wait(LONG)
    assert TIMEOUT <= took <= TIMEOUT + 15
    assert "rank 0 (host n0, pid 100) has not moved for 60 s: waiting for input at step 3; ended" in ranks.ended[0][2]
    assert ranks.ended[0][3] == 0


def test_a_process_that_was_stopped_counts_anew_when_it_goes_on(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(1)
    ranks.start(0)
    ranks.dogs[0].at("training step", 1)
    ranks.wait(TIMEOUT - 5)
    ranks.now += 10 * TIMEOUT
    took = ranks.wait(LONG)
    assert TIMEOUT <= took <= TIMEOUT + 15


def test_waiting_for_others_is_part_of_a_phase(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(1)
    ranks.start(0)
    dog = ranks.dogs[0]
    dog.at("export", 3)
    dog.waits(True)
    dog.waits(True)
    assert dog._mark[:2] == ("waiting for the others (export)", 3)
    dog.waits(False)
    dog.waits(False)
    assert dog._mark[:2] == ("export", 3)


def leave(dog: Watchdog) -> None:
    dog.__exit__(None, None, None)


def test_leaving_ends_the_watch_and_removes_the_folder(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(2)
    ranks.start(0, 1)
    ranks.wait(LONG, until=lambda: (ranks.folder / "rank-1.json").exists())
    for dog in ranks.dogs.values():
        leave(dog)
    assert not ranks.folder.exists()
    ranks.wait(LONG)
    assert not ranks.ended


def test_a_job_that_ends_while_the_judge_decides_has_ended_normally(
    make_ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = make_ranks(2)
    read, decided = StallFolder.read, []

    def read_while_the_job_ends(self: StallFolder) -> dict[int, Report]:
        found = read(self)
        leave(ranks.dogs[0])
        decided.append(judge(found, places(2), TIMEOUT, TIMEOUT))
        return found

    monkeypatch.setattr(StallFolder, "read", read_while_the_job_ends)
    ranks.start(0)
    ranks.wait(LONG)
    assert decided[0] is not None
    assert not ranks.ended


def test_a_rank_that_moves_while_the_judge_decides_takes_the_verdict_back(
    make_ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, claimed = make_ranks(2), []
    claim = StallFolder.claim

    def claim_late(self: StallFolder, message: str) -> bool:
        ranks.dogs[0].at("training step", 42)
        claimed.append(message)
        return claim(self, message)

    monkeypatch.setattr(StallFolder, "claim", claim_late)
    ranks.start(0)
    ranks.wait(LONG, until=lambda: claimed)
    assert claimed
    assert not ranks.ended
    assert not (ranks.folder / "verdict.txt").exists()


def test_a_job_dir_that_does_not_answer_does_not_keep_the_job_alive(
    make_ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    monkeypatch.setattr(StallFolder, "report", lambda self, fields: hang.wait(3600) and None)
    ranks = make_ranks(2)
    ranks.start(0)
    ranks.dogs[0]._files = Bounded(0.1)
    ranks.dogs[0].at("checkpoint", 5)
    took = ranks.wait(LONG)
    hang.set()
    assert TIMEOUT <= took <= TIMEOUT + 15
    message, blamed = ranks.ended[0][2:]
    assert "rank 0 (host n0, pid 100) has not moved for" in message
    assert (
        f"checkpoint at step 5; it cannot ask the others, since the job-dir does not answer: {ranks.folder};" in message
    )
    assert blamed is None


def test_a_job_dir_that_cannot_be_written_is_named(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(2)
    ranks.folder.parent.parent.mkdir(exist_ok=True)
    ranks.folder.parent.write_text("a file in the folder's place")
    ranks.start(0)
    ranks.wait(LONG)
    assert "since the job-dir cannot be used: [Errno" in ranks.ended[0][2]


def test_the_watch_looks_in_a_thread_of_its_own_and_leaving_ends_it(tmp_path: Path) -> None:
    ended = threading.Event()
    with Watchdog(0, "n0", places(1), tmp_path / "stall", 0.5, lambda message, blamed: ended.set()) as dog:
        dog.at("training step", 1)
        wait_for(ended.is_set, "the job is ended")
    assert not dog._thread.is_alive()


def test_a_hanging_call_is_given_up_and_not_repeated() -> None:
    hang, bounded, called = threading.Event(), Bounded(LIMIT_SECS), []
    assert bounded.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        bounded.call(lambda: 1 // 0)
    bounded.limit_secs = 0.1
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


def test_zero_seconds_is_no_watch(tmp_path: Path) -> None:
    before = threading.active_count()
    with Watchdog(0, "n0", places(2), tmp_path / "stall", 0, lambda message, blamed: os._exit(6)) as dog:
        dog.at("training step", 1)
        assert threading.active_count() == before


def test_moving_on_costs_next_to_nothing(tmp_path: Path) -> None:
    with Watchdog(0, "n0", places(2), tmp_path / "stall", 600, lambda message, blamed: None) as dog:
        runs = timeit.repeat(lambda: dog.at("training step", 41), timer=time.thread_time, number=10_000, repeat=7)
        secs = min(runs) / 10_000  # of the processor, however busy the machine is
    assert secs < 1e-4


def test_the_place_of_a_rank_is_what_it_is_at_and_the_last_step_that_is_done(tmp_path: Path) -> None:
    dog = Watchdog(0, "n0", places(1), tmp_path / "stall", 0, lambda message, blamed: None)
    assert dog.place() == ("the start", None)
    dog.at(TRAINING, 8)
    assert dog.place() == ("training step 8", 7)
    dog.waits(True)
    assert dog.place() == ("training step 8", 7), "which is where the others are waited for"
    dog.waits(False)
    dog.at("evaluation", 8)
    assert dog.place() == ("evaluation at step 8", 8)
    dog.at("waiting for gradients", None)
    assert dog.place() == ("waiting for gradients", None)

"""A rank below its guard: how both end, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.resilience.guard import ALLOWED
from hpc_train.resilience.lost_ranks import LostRank, LostRanks, forget_left, gone_ranks, measured_by, note_left
from tests.support import LIMIT_SECS, is_gone, wait_for

RANK = """
import os, signal, sys, time
from pathlib import Path
from hpc_train.resilience.guard import dispense, is_guarded, stand_guard

stand_guard(os.environ)
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
if sys.argv[2] != "0":
    dispense(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[2]))
print(os.getpid(), is_guarded(), flush=True)
while not got:
    time.sleep(0.01)
sys.exit(7)
"""


def started(folder: Path, ranks: int, rank: int = 2, **env: str) -> tuple[subprocess.Popen[str], int, bool]:
    """A process, the rank that it is or guards, and whether that has a guard. `ranks` 0: it is needed."""
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, str(folder), str(ranks), str(rank)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid, guarded = process.stdout.readline().split()
    return process, int(pid), guarded == "True"


GUARDED = {ALLOWED: "1", "OMPI_COMM_WORLD_SIZE": "3"}


@pytest.mark.parametrize("env", [{}, {ALLOWED: "1"}, {"OMPI_COMM_WORLD_SIZE": "3"}, {**GUARDED, ALLOWED: "0"}])
def test_who_is_not_asked_to_has_no_guard(tmp_path: Path, env: dict[str, str]) -> None:
    process, pid, guarded = started(tmp_path, 0, **env)
    assert (pid, guarded) == (process.pid, False)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(LIMIT_SECS) == 7


def test_signals_and_the_exit_code_are_passed_on(tmp_path: Path) -> None:
    process, pid, guarded = started(tmp_path, 2, **GUARDED)
    assert guarded and pid != process.pid
    process.send_signal(signal.SIGUSR1)
    assert process.wait(LIMIT_SECS) == 7
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_death_of_a_rank_that_is_needed_is_that_of_its_guard(tmp_path: Path, number: signal.Signals) -> None:
    process, pid, _ = started(tmp_path, 0, **GUARDED)
    os.kill(pid, number)
    assert process.wait(LIMIT_SECS) == -number
    assert not list(tmp_path.iterdir())


def test_ranks_are_lost_one_by_one_but_the_last(tmp_path: Path) -> None:
    lost = LostRanks(tmp_path / "lost")
    assert lost.look() == []
    for rank, number in ((2, signal.SIGKILL), (3, signal.SIGBUS)):
        process, pid, _ = started(lost.folder, 3, rank, **GUARDED)
        os.kill(pid, number)
        assert process.wait(LIMIT_SECS) == 0
    process, pid, _ = started(lost.folder, 3, 4, **GUARDED)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(LIMIT_SECS) == -signal.SIGKILL
    assert json.loads((lost.folder / "rank-3.json").read_text())["signal"] == "SIGBUS"
    found: list[LostRank] = []
    wait_for(lambda: found.extend(lost.look()) or len(found) == 2, "two are found")
    assert found == lost.known == [LostRank(2, "SIGKILL"), LostRank(3, "SIGBUS")]
    note_left(lost.folder, 1, {})
    assert gone_ranks(lost.folder) == {1, 2, 3}, "4 was the last, whose death is the job's"
    forget_left(lost.folder)
    assert gone_ranks(lost.folder) == {2, 3}


def test_nothing_is_left_of_a_job_that_lost_no_rank(tmp_path: Path) -> None:
    folder = LostRanks(tmp_path / "lost").folder
    note_left(folder, 2, {"joules": 3.5})
    assert (gone_ranks(folder), measured_by(folder, 2), measured_by(folder, 1)) == ({2}, {"joules": 3.5}, {})
    (folder / "left-1").write_text('{"joules": "x", "secs": [1], "more": NaN}')
    assert measured_by(folder, 1) == {}
    forget_left(folder)
    assert list(tmp_path.iterdir()) == []
    note_left(folder, 3, {})  # which is later than the chief
    forget_left(folder)
    assert gone_ranks(folder) == set()


def test_what_earlier_runs_left_is_taken_away_unless_they_lost_a_rank(tmp_path: Path) -> None:
    left = {"lost-0a": ["left-1", "gone-2"], "lost-1b": [], "lost-2c": ["rank-3.json", "gone-3"], "lost-x": ["left-1"]}
    for folder, names in left.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch()
    (tmp_path / "lost-3d").symlink_to(tmp_path / "lost-x")
    LostRanks(tmp_path / "lost-4e")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lost-2c", "lost-3d", "lost-4e", "lost-x"]
    assert gone_ranks(tmp_path / "lost-2c") == {3}


def test_a_rank_is_lost_where_its_folder_is_gone_as_without_a_guard(tmp_path: Path) -> None:
    process, pid, _ = started(tmp_path / "none", 3, **GUARDED)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(LIMIT_SECS) == -signal.SIGKILL


def test_the_guard_takes_its_rank_with_it(tmp_path: Path) -> None:
    process, pid, _ = started(tmp_path, 2, **GUARDED)
    process.kill()
    assert process.wait(LIMIT_SECS) == -signal.SIGKILL
    wait_for(lambda: is_gone(pid), "the rank's end")

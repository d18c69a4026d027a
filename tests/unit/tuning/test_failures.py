"""What is said of the trials that have failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.tuning.search.words import because, failures, shown
from tests.studies import left, state_of, suggested

TRIALS = Path("/runs/mine_study/trials")


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["no such file"], "1 trial failed: no such file"),
        (["no such file", "no such file"], "2 trials failed, all for one reason: no such file"),
        (
            [f"{TRIALS}/0000/model.py: wrong", f"{TRIALS}/0001/model.py: wrong\nand more"],
            "2 trials failed, all for one reason: …/model.py: wrong",
        ),
        (
            ["killed", "out of memory", "killed"],
            "3 trials failed, 2 for one reason: killed; 1 for others; see hpc-train tune status",
        ),
        (["killed", "lost"], "2 trials failed, for different reasons: killed; …; see hpc-train tune status"),
    ],
)
def test_the_most_common_reason_is_said_once(reasons: list[str], said: str) -> None:
    state = state_of(*map(suggested, range(len(reasons))))
    for number, why in enumerate(reasons):
        state.hear(left(number, "failed", why=why))
    assert failures(state.trials, TRIALS) == said


def test_a_reason_that_was_told_is_not_told_again() -> None:
    state = state_of(*map(suggested, range(3)))
    for number in range(3):
        state.hear(left(number, "failed", why="killed" if number else f"{TRIALS}/0000/x: no such file"))
    first, second, third = state.trials
    assert because(second, [first, second], TRIALS) == " (killed)"
    assert because(third, state.trials, TRIALS) == " (as trial 0001)"


def test_values_are_shown_in_short() -> None:
    assert [shown(value) for value in (0.000123456, 1e-5, 12, "a", None, [1, 2])] == [
        "0.0001235",
        "1e-05",
        "12",
        "a",
        "None",
        "[1, 2]",
    ]

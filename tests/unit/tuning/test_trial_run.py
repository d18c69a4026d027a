"""How a run of a trial has ended, told from its exit code and from what was printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.jobs.launch.error_excerpt import LastWords
from hpc_train.tuning.execution.trial_run import TrialCommand, code_in_truth, failure_in_words

NOTHING = LastWords(None, None, None, ("curves: tensorboard --logdir runs",))
RAISED = LastWords(None, None, "ValueError: too wide", ("Traceback …", "ValueError: too wide"))
LEFT = LastWords(0, None, "rank 0 on n1 left with code 1 without finishing", ())
KILLED = LastWords(0, "SIGKILL", "rank 0 on n1 was killed by SIGKILL", ())


@pytest.mark.parametrize(
    ("code", "words", "truth"),
    [
        (1, [NOTHING], 143),  # so ends an mpirun that gets SIGTERM
        (1, [NOTHING, RAISED], 1),
        (1, [LEFT, NOTHING], 1),
        (137, [NOTHING], 137),
        (0, [NOTHING], 0),
    ],
)
def test_a_run_has_not_failed_where_nobody_has_told_of_a_failure(code: int, words: list[LastWords], truth: int) -> None:
    assert code_in_truth(code, *words) == truth


@pytest.mark.parametrize(
    ("code", "words", "why"),
    [
        (143, NOTHING, "mpirun was ended by SIGTERM"),
        (137, KILLED, "rank 0 on n1 was killed by SIGKILL"),
        (1, RAISED, "ValueError: too wide"),
        (7, NOTHING, "curves: tensorboard --logdir runs"),
    ],
)
def test_a_failure_is_told_in_words(code: int, words: LastWords, why: str, tmp_path: Path) -> None:
    command = TrialCommand(tmp_path / "job.yaml", tmp_path, tmp_path, 1, ())
    assert failure_in_words(command, code, words) == why

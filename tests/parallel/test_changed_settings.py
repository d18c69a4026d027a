"""What a job that goes on trains with, where its settings are others than before."""

from __future__ import annotations

from pathlib import Path

from tests.support import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "changed_settings.py"


def test_what_is_asked_for_is_trained_with_refused_or_warned_of(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, tmp_path], tmp_path)
    assert done.returncode == 0 and done.stdout.count("settings are fine") == 1, done.stdout + done.stderr
    for line in (
        "changed at step 4: optimizer.learning_rate: 0.01 -> 0.1",
        "changed without effect: params.learning_rate, optimizer.learning_rate: nothing is left to train",
        "var_name_to_prev_var_name: the variables are those of the checkpoint",
        "does not record what its run was asked for: training goes on with the learning rate of this run, 0.1, and not "
        "with the checkpoint's, 0.01",
    ):
        assert line in done.stdout + done.stderr, line

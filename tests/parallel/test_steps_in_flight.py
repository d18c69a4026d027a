"""Jobs whose steps are dispatched before the one that runs is over."""

from __future__ import annotations

from pathlib import Path

from tests.support import REPOSITORY, records_of, run_ranks, variables

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "steps_in_flight.py"


def test_steps_in_flight_change_nothing_but_the_time_of_a_stop(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, tmp_path], tmp_path, timeout=600)
    assert done.stdout.count("steps in flight are fine") == 2, done.stdout + done.stderr
    assert done.returncode == 7, "the last job of the program ends all ranks: " + done.stderr
    assert "step 6: loss or gradients of rank 1 are not finite" in done.stderr
    assert [record["step"] for record in records_of(tmp_path / "halt" / "2", "checkpoint")] == [4]
    assert variables(tmp_path / "halt" / "2", 4).keys() == variables(tmp_path / "steps" / "0", 4).keys()

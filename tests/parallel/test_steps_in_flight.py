"""Jobs whose steps are dispatched before the one that runs is over."""

from __future__ import annotations

from pathlib import Path

from tests.support import REPOSITORY, records_of, run_ranks, variables

PROGRAMS = REPOSITORY / "tests" / "parallel" / "programs"


def test_steps_in_flight_change_nothing_but_the_time_of_a_stop(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAMS / "steps_in_flight.py", tmp_path], tmp_path, timeout=600)
    assert done.stdout.count("steps in flight are fine") == 2, done.stdout + done.stderr
    assert done.returncode == 7, "the last job of the program ends all ranks: " + done.stderr
    assert "step 6: loss or gradients of rank 1 are not finite" in done.stderr
    assert [record["step"] for record in records_of(tmp_path / "halt" / "2", "checkpoint")] == [4]
    assert variables(tmp_path / "halt" / "2", 4).keys() == variables(tmp_path / "steps" / "0", 4).keys()


def test_asynchronous_workers_push_each_gradient_once_and_are_as_stale_as_they_say(tmp_path: Path) -> None:
    done = run_ranks(3, [PROGRAMS / "steps_in_flight_async.py", tmp_path], tmp_path, timeout=600)
    assert done.stdout.count("steps in flight are fine") == 3, done.stdout + done.stderr
    assert done.returncode == 7, "the last job of the program ends all ranks: " + done.stderr
    assert "step 6: loss or gradients of rank 2 are not finite" in done.stderr
    assert [path.name for path in (tmp_path / "halt" / "checkpoints").iterdir()] == ["step-00000004"]

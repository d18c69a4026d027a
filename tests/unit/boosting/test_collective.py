"""How ranks leave XGBoost's collective."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.boosting import collective
from hpc_train.resilience.signals import JobStopped


def test_the_chief_of_a_job_that_stops_leaves_last(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Tracker:
        def __init__(self, *_: object, **__: object) -> None: ...
        def start(self) -> None: ...
        def worker_args(self) -> dict[str, Any]:
            return {}

        def wait_for(self) -> None:
            done.append("all have left")

    ours = SimpleNamespace(init=lambda **_: done.append("joined"), finalize=lambda: done.append("left"))
    monkeypatch.setattr("xgboost.tracker.RabitTracker", Tracker)
    monkeypatch.setattr(collective, "xgboost", lambda: SimpleNamespace(collective=ours))
    world: Any = SimpleNamespace(
        size=2, rank=0, host="a", all_gather=lambda host: [host, host], on_chief=lambda call: call()
    )
    with pytest.raises(JobStopped), collective.joined(world):
        raise JobStopped(3)
    assert done == ["joined", "left", "all have left"]

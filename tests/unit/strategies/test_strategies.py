"""A strategy is one package and one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

import hpc_train as ht
from hpc_train.config import types
from hpc_train.errors import UserError
from hpc_train.strategies import strategy_of
from tests.support import FINAL, Job, environment

PROGRAM = """
from hpc_train.__main__ import main
from hpc_train.config.types import STRATEGIES

STRATEGIES["alone"] = "tests.unit.strategies.alone"  # the line
main()
"""


def test_a_new_strategy_trains_evaluates_and_exports(make_job: Callable[..., Job]) -> None:
    job = make_job(run={"strategy": "alone"}, eval=FINAL)
    command = [sys.executable, "-c", PROGRAM, "train", str(job.file), "--job-dir", str(job.job_dir)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    status = json.loads((job.job_dir / "status.json").read_text())
    assert (status["state"], status["step"]) == ("succeeded", 20)
    assert len(status["exports"]) == 1


def test_only_known_strategies_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="strategy"):
        ht.RunConfig("x", strategy="alone")
    monkeypatch.setitem(types.STRATEGIES, "alone", "tests.unit.strategies.alone")
    run = ht.RunConfig("x", strategy="alone")
    assert strategy_of(run.strategy).roles(1, run).readers == 1
    with pytest.raises(UserError, match="for 1 rank"):
        strategy_of(run.strategy).roles(2, run)

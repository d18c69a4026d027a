"""Optimizers of which each rank holds a part, against whole ones, on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.ranks import train_in_turn
from tests.support import IN_SOAK, REPOSITORY, STATEFUL_MODEL, Job, merge, records_of, run_ranks, variables

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "sharded_optimizer.py"


@pytest.mark.parametrize(
    ("ranks", "carrier"), [(2, "mpi"), (2, "horovod"), pytest.param(3, "mpi", marks=IN_SOAK), (4, "horovod")]
)
def test_sharded_optimizers_do_what_whole_ones_do(tmp_path: Path, ranks: int, carrier: str) -> None:
    done = run_ranks(ranks, [PROGRAM, carrier], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks


MODEL = STATEFUL_MODEL.replace("Adam(", "AdamW(").replace("0.01, 40))", "0.01, 40), use_ema=True)")


def change(job: Job, **changes: Any) -> None:
    described = yaml.safe_load(job.file.read_text())
    job.file.write_text(yaml.safe_dump(merge(described, changes), sort_keys=False))


def last_evaluation(job: Job) -> dict[str, Any]:
    (*_, found) = records_of(job.job_dir, "eval")
    return {name: value for name, value in found.items() if isinstance(value, float) and "loss" in name}


def test_checkpoints_are_those_of_any_job(make_job: Callable[..., Job]) -> None:
    """A run of 20 steps, runs that stop at 10 and go on otherwise: with or without the option, on other ranks."""

    def make(name: str, sharded: bool, steps: int = 10) -> Job:
        return make_job(name, model=MODEL, train={"max_steps": steps}, run={"shard_optimizer": sharded})

    plain, sharded = make("plain", False, 20), make("sharded", True, 20)
    on, there, back = make("on", True), make("there", False), make("back", True)
    more, more_plain, one = make("more", True), make("more_plain", False), make("one", True)
    threads = {"OMP_NUM_THREADS": "1"}
    done = train_in_turn([plain, sharded, on, there, back, more, more_plain, one], 2, **threads)
    assert done.returncode == 0, done.stderr
    for job in (on, there, back, more, more_plain, one):
        change(job, train={"max_steps": 20})
    change(there, run={"shard_optimizer": True})
    change(back, run={"shard_optimizer": False})
    for ranks, jobs in ((2, [on, there, back]), (3, [more, more_plain]), (0, [one])):
        done = train_in_turn(jobs, ranks, **threads)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("going on from step 10") == len(jobs)
    assert "run.shard_optimizer has no effect" in done.stdout
    for step in (10, 20):
        expected = variables(plain.job_dir, step)
        assert any("average" in name for name in expected)
        for job in (sharded, on, there, back):
            found = variables(job.job_dir, step)
            assert list(found) == list(expected)
            for name, array in found.items():
                np.testing.assert_array_equal(array, expected[name], err_msg=f"{job.folder.name}: {name}")
    assert all(last_evaluation(job) == last_evaluation(plain) for job in (sharded, on, there, back))
    ours, theirs = variables(more.job_dir, 20), variables(more_plain.job_dir, 20)
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)

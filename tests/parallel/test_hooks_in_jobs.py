"""Hooks, Keras callbacks and saving listeners in jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks import train
from tests.support import Job, run_ranks

PROGRAMS = Path(__file__).parent / "programs"

HOOKS = """
import os
import hpc_train as ht

class Cursed(ht.Hook):
    def begin(self, context):
        self.rank = context.rank

    def after_step(self, step, loss):
        open(f"seen-{self.rank}", "w").write(str(step))
        if self.rank == 1 and step == 3:
            raise ValueError("the third step is cursed")

def make():
    return [Cursed()]
"""


@pytest.mark.parametrize("ranks", [0, 2])
def test_what_is_called_when_and_what_it_can_do(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAMS / "hook_jobs.py", tmp_path], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("hooks are fine") == max(ranks, 1)


def test_a_hook_of_a_job_file_that_fails_is_named_and_ends_all_ranks(make_job: Callable[..., Job]) -> None:
    job = make_job(train={"max_steps": 10**6, "hooks": ["hooks.py:make"]})
    (job.folder / "hooks.py").write_text(HOOKS)
    done = train(job, 2)
    assert done.returncode == 1, done.stderr
    cause = "RuntimeError: hook Cursed.after_step failed at step 3: the third step is cursed\n"
    assert done.stderr.count("rank 1 failed:") == 1 and done.stderr.count(f"\n{cause}") == 1, done.stderr
    assert f"rank 1 failed (training step 3): {cause}" in done.stderr, "the last line"
    status = json.loads((job.job_dir / "status.json").read_text())
    assert (status["state"], status["error"]["rank"]) == ("failed", 1)
    assert int((job.folder / "seen-1").read_text()) == 3

"""A rank that is slow is named once: log, status, report, and the file that the next start reads.

How sure that is on a busy machine is for benchmarks/slow_rank.py; here the delay is many times the step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from hpc_train.jobdir.slow_nodes import read_slow_nodes
from tests.ranks import hpc_train
from tests.support import MODEL, Job, records_of, run_ranks

HOOKS = """
import hpc_train as ht
from pathlib import Path

class UntilNamed(ht.Hook):
    def begin(self, context):
        self.named = Path(context.job_dir) / "status.json"
        self.ask = context.request_stop

    def after_step(self, step, loss):
        if step % 10 == 0 and '"rank": 2' in self.named.read_text().partition('"slow_ranks"')[2]:
            self.ask("named")

def make():
    return UntilNamed()
"""
LARGE = MODEL.replace("layers.Dense(16,", "layers.Dense(4096,")
"""Of which a step takes more than what is too short to be judged."""


def status(job: Job) -> dict[str, Any]:
    return json.loads((job.job_dir / "status.json").read_text())


@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_a_slow_rank_is_named_once(strategy: str, make_job: Callable[..., Job]) -> None:
    job = make_job(
        strategy,
        train={"max_steps": 10**6, "hooks": ["hooks.py:make"]},
        run={"strategy": strategy, "save_summary_steps": 2, "on_slow_node": "exclude", "tf_random_seed": 1},
    )
    (job.folder / "hooks.py").write_text(HOOKS)
    (job.folder / "model.py").write_text(LARGE)
    program = ["-m", "hpc_train", "train", str(job.file), "--job-dir", str(job.job_dir), "--debug-delay", "2:300"]
    done = run_ranks(3, program, job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if "rank 2 on" in line]
    assert sum("is slow: its own part of a step takes" in line for line in lines) == 1, done.stdout
    (entry,) = [entry for entry in status(job)["slow_ranks"] if entry["rank"] == 2]
    assert entry["ratio"] > 1.2 and entry["host"]
    assert "is the job's only node" in done.stdout + done.stderr and read_slow_nodes(job.job_dir) == ()
    times = records_of(job.job_dir, "rank_times")[-1]["own_secs"]
    assert len(times) == 3 and times[2] > 0
    page = hpc_train(["report", str(job.job_dir)], 0, job.folder)
    assert page.returncode == 0
    text = (job.job_dir / "report.html").read_text()
    assert "Ranks by node" in text and re.search(r'class="slow5 named">rank 2<br>', text)
    said = " ".join(hpc_train(["describe", str(job.job_dir)], 0, job.folder).stdout.split())
    assert f"rank 2 on {entry['host']}: a step takes it" in said

"""A rank that is slow is named once: log, status, report, and the file that the next start reads.

How sure that is on a busy machine is for benchmarks/slow_rank.py; here the delay is many times the step.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hpc_train.jobdir.slow_nodes import read_slow_nodes
from tests.ranks import hpc_train
from tests.support import MODEL, SOAK, Job, records_of, run_ranks

HOOKS = """
import hpc_train as ht
import os
import time
from pathlib import Path

RANK, CORES = 2, ()

class UntilNamed(ht.Hook):
    def begin(self, context):
        for thread in os.listdir("/proc/self/task") if CORES else ():
            os.sched_setaffinity(int(thread), {CORES[context.rank]})
        self.named = Path(context.job_dir) / "status.json"
        self.ask, self.secs = context.request_stop, 0.3 if context.is_chief and not CORES else 0

    def after_step(self, step, loss):
        time.sleep(self.secs)
        if step % 10 == 0 and f'"rank": {RANK}' in self.named.read_text().partition('"slow_ranks"')[2]:
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
    chief = 0 if strategy == "sync" else 1
    assert chief not in [entry["rank"] for entry in status(job)["slow_ranks"]], "what its hook does is not its step's"
    assert "is the job's only node" in done.stdout + done.stderr and read_slow_nodes(job.job_dir) == ()
    times = records_of(job.job_dir, "rank_times")[-1]["own_secs"]
    assert len(times) == 3 and times[2] > 0
    page = hpc_train(["report", str(job.job_dir)], 0, job.folder)
    assert page.returncode == 0
    text = (job.job_dir / "report.html").read_text()
    assert "Ranks by node" in text and re.search(r'class="slow5 named">rank 2<br>', text)
    said = " ".join(hpc_train(["describe", str(job.job_dir)], 0, job.folder).stdout.split())
    assert f"rank 2 on {entry['host']}: a step takes it" in said


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="make soak: two idle cores")
def test_a_rank_whose_core_another_process_takes_is_named(make_job: Callable[..., Job]) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("one core")
    train = {"max_steps": 10**6, "hooks": ["hooks.py:make"]}
    run = {"save_summary_steps": 10, "save_checkpoints_steps": 10**6}
    job = make_job("job", train_rows=[8192], train=train, run=run, data={"train": {"batch_size": 2048}})
    (job.folder / "hooks.py").write_text(HOOKS.replace("2, ()", f"1, {cores}"))
    (job.folder / "model.py").write_text(LARGE)
    program = ["-m", "hpc_train", "train", str(job.file), "--job-dir", str(job.job_dir)]
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for other in others:
            os.sched_setaffinity(other.pid, {cores[1]})
        done = run_ranks(2, program, job.folder, OMP_NUM_THREADS="1")
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    (entry,) = status(job)["slow_ranks"]
    assert entry["rank"] == 1
    assert re.search("other processes have [0-9]+% of the time of its cores", entry["why"]), entry
    print(entry)

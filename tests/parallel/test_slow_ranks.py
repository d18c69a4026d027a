"""A rank that is slow is named once: log, status, report, and the file that the next start reads.

How sure that is on a busy machine is for `make soak`; here the delay is many times the step.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_train.jobdir.slow_nodes import read_slow_nodes
from tests.ranks import hpc_train
from tests.support import LIMIT_SECS, MODEL, Job, make_job_in, records_of, run_ranks

SOAK = int(os.environ.get("SOAK", "1"))
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


BESIDE = "while True: sum(range(10**5))"


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="make soak: an idle machine of two cores")
class TestOfTwoCores:
    """Two ranks of one thread on two cores, with nothing else on the machine than what the test starts."""

    def names(self, folder: Path, beside: int = 0, delay: str | None = None, records: int = 50) -> list[int]:
        """The records at which rank 1 was named, of a job of so many records; -1 for any other rank."""
        train, run = {"max_steps": records * 5}, {"save_summary_steps": 5}
        job = make_job_in(folder, "job", train_rows=(4096, 4096), train=train, run=run)
        (job.folder / "model.py").write_text(LARGE)
        text = yaml.safe_load(job.file.read_text())
        text["data"]["train"]["batch_size"] = 1024
        job.file.write_text(yaml.safe_dump(text))
        more = ["--debug-delay", delay] if delay else []
        others = [subprocess.Popen([sys.executable, "-c", BESIDE]) for _ in range(beside)]
        try:
            program = ["-m", "hpc_train", "train", str(job.file), "--job-dir", str(job.job_dir), *more]
            done = run_ranks(2, program, job.folder, LIMIT_SECS, OMP_NUM_THREADS="1")
        finally:
            for other in others:
                other.kill()
                other.wait()
        assert done.returncode == 0, done.stdout + done.stderr
        found = records_of(job.job_dir, "slow_rank")
        self.own = records_of(job.job_dir, "rank_times")[-1]["own_secs"]
        return [entry["step"] // 5 if entry["rank"] == 1 else -1 for entry in found]

    def test_no_false_alarm_in_ten_runs_beside_other_work(self, tmp_path: Path) -> None:
        found = [self.names(tmp_path / str(run), beside=1) for run in range(10)]
        assert found == [[]] * 10

    def test_a_rank_slower_by_three_tenths_is_named_within_fifty_records(self, tmp_path: Path) -> None:
        assert self.names(tmp_path / "equal") == []
        delay = f"1:{300 * self.own[1]:.3f}"
        (record,) = self.names(tmp_path / "slowed", delay=delay)
        print(f"slowed by {delay}: named at record {record}; own times {self.own}")
        assert 0 < record <= 50

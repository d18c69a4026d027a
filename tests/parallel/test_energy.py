"""Energy of jobs: joules of a stand-in machine, once a node, in status, metrics, describe and report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_async import change
from tests.ranks import hpc_train, train, train_in_turn
from tests.support import Job, records_of
from tests.unit.telemetry.energy.machine import Machine

STEPS = 8
STOPS_AT = 20
HOOKS = """
import json, os, signal
import hpc_train as ht

class Burns(ht.Hook):
    \"\"\"Three joules a step.\"\"\"

    def begin(self, context):
        self.rank = context.rank
        self.status = context.job_dir / "status.json"

    def after_step(self, step, loss):
        if step == 1:
            with open(self.status) as file:
                assert "joules" in json.load(file)["energy"]["nodes"][0], "known before the first step"
        if self.rank == 1:
            with open(COUNTER) as file:
                joules = int(file.read().split()[0]) + 3
            with open(f"{COUNTER}.new", "w") as file:
                file.write(f"{joules} J 1700000000000000 us\\n")
            os.replace(f"{COUNTER}.new", COUNTER)
            if step == STOPS_AT:
                os.kill(os.getpid(), signal.SIGUSR1)

def make():
    return Burns()
"""


def status(job: Job) -> dict[str, Any]:
    return json.loads((job.job_dir / "status.json").read_text())


@pytest.fixture
def jobs(make_job: Callable[..., Job], tmp_path: Path) -> dict[str, Job]:
    made = {}
    for name, run in {"sync": {}, "dedicated": {"chief": "dedicated"}, "async": {"strategy": "async"}}.items():
        made[name] = make_job(
            name,
            train={"max_steps": STEPS, "hooks": ["hooks.py:make"]},
            run={"save_summary_steps": 3, "report": True, **run},
        )
        counter = tmp_path / "sys/cray/pm_counters/energy"
        hooks = HOOKS.replace("COUNTER", repr(str(counter))).replace("STOPS_AT", str(STOPS_AT))
        (made[name].folder / "hooks.py").write_text(hooks)
    return made


def test_the_energy_of_a_node_is_counted_once(jobs: dict[str, Job], tmp_path: Path) -> None:
    Machine(tmp_path / "sys").cray("1000 J 1 us\n")
    done = train_in_turn(list(jobs.values()), 2, HPC_TRAIN_SYSFS=str(tmp_path / "sys"))
    assert done.returncode == 0, done.stdout + done.stderr
    for name, job in jobs.items():
        found = status(job)["energy"]
        (node,) = found["nodes"]
        assert (found["joules"], found["total_joules"], found["complete"]) == (3 * STEPS, 3 * STEPS, True), name
        assert (node["joules"], node["covers"], node["lacks"]) == (3 * STEPS, "the whole node", ""), name
        examples = 3 * STEPS * 1000 / found["per_1000_examples"]
        batches = 1 if name != "sync" else 2
        assert examples == pytest.approx(STEPS * batches * batch_of(job), rel=1e-3), name
        joules = [record["joules"] for record in records_of(job.job_dir, "train")]
        assert joules == sorted(joules) and 3 * (STEPS - 1) <= joules[-1] <= 3 * STEPS, name
        assert "joules" not in records_of(job.job_dir, "train")[-1]["by_rank"]
        page = (job.job_dir / "report.html").read_text()
        assert "Energy of the last run by node" in page and "24 J" in page
        assert re.search(r"[0-9.e+-]+ W\b", page) and node["secs"] > 0
    said = hpc_train(["describe", str(jobs["async"].job_dir)], 0, tmp_path).stdout
    assert "24 J," in " ".join(said.split()), said


@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_run_that_a_signal_stops_is_counted_to_its_end(jobs: dict[str, Job], tmp_path: Path, name: str) -> None:
    """The first record would be of a later step."""
    Machine(tmp_path / "sys").cray("1000 J 1 us\n")
    job = jobs[name]
    change(job, train={"max_steps": 10**6}, run={"save_summary_steps": 10**6})
    done = train(job, 2, fresh=True, HPC_TRAIN_SYSFS=str(tmp_path / "sys"))
    assert done.returncode == 3, done.stdout + done.stderr
    found = status(job)
    assert (found["state"], found["energy"]["complete"]) == ("stopped", True)
    assert found["energy"]["joules"] == 3 * found["step"] >= 3 * STOPS_AT


def test_a_machine_that_does_not_tell(jobs: dict[str, Job], tmp_path: Path) -> None:
    job = jobs["sync"]
    (job.folder / "hooks.py").write_text("import hpc_train as ht\n\ndef make():\n    return ht.Hook()\n")
    (tmp_path / "sys").mkdir()
    assert train_in_turn([job], 2, HPC_TRAIN_SYSFS=str(tmp_path / "sys")).returncode == 0
    found = status(job)["energy"]
    assert list(found) == ["not_measured"]
    assert found["not_measured"].startswith("processors and memory: the machine shows no counters (RAPL)")
    assert "not measured" in (job.job_dir / "report.html").read_text()


def batch_of(job: Job) -> int:
    import yaml

    return int(yaml.safe_load(job.file.read_text())["data"]["train"]["batch_size"])

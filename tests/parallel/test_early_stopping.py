"""Jobs that end before their last step, by a rule of their job file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forks import forked
from tests.ranks import train_in_turn
from tests.support import FINAL, LIMIT_SECS, MODEL, Job, environment, merge, mpirun, records_of, wait_for

MakeJob = Callable[..., Job]

LOG = """
import os, time
import hpc_train as ht

class Log(ht.Hook):
    def begin(self, context):
        self.rank = context.rank
        self.file = open(f"steps-{context.rank}", "a")
        open(f"pid-{context.rank}", "w").write(str(os.getpid()))

    def after_step(self, step, loss):
        print(step, file=self.file, flush=True)

def log():
    return Log()

class Waits(ht.Hook):
    def before_evaluate(self, step, name):
        if os.path.exists("early") and step == int(open("early").read()):
            open("waiting", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.05)

def waits():
    return Waits()
"""

MANY = 100_000
EVERY = {"run_every_steps": 1}
RULES: dict[str, dict[str, Any]] = {
    "stop_if_no_decrease": {"metric_name": "loss", "max_steps_without_decrease": 4, **EVERY},
    "stop_if_no_increase": {"metric_name": "accuracy", "max_steps_without_increase": 4, **EVERY},
    "stop_if_lower": {"metric_name": "loss", "threshold": 1e9, "min_steps": 4, **EVERY},
    "stop_if_higher": {"metric_name": "accuracy", "threshold": -1.0, "min_steps": 4, **EVERY},
}
"""With a learning rate of 0 nothing gets better, so that the first evaluation is the best: the first two rules stop
after the evaluation of step 6, the others after that of step 4."""
REASONS = {
    "stop_if_no_decrease": r"eval loss has not decreased for 4 steps: best \S+ at step 2, now at 6",
    "stop_if_no_increase": r"eval accuracy has not increased for 4 steps: best \S+ at step 2, now at 6",
    "stop_if_lower": r"eval loss is lower than 1e\+09: \S+ at step 4",
    "stop_if_higher": r"eval accuracy is higher than -1: \S+ at step 4",
}
STILL = {"params": {"learning_rate": 0.0}}
REPORTED = "stop_if_lower"


def ruled(make_job: MakeJob, rule: str, name: str = "", max_steps: int = MANY, **changes: Any) -> Job:
    run = {
        "save_checkpoints_steps": 2,
        "save_summary_steps": 1000,
        "report": rule == REPORTED,
        **changes.pop("run", {}),
    }
    stopping = {rule: changes.pop("rule", RULES[rule])}
    job = make_job(
        name or rule,
        model=changes.pop("model", MODEL),
        run=run,
        train={"max_steps": max_steps, "early_stopping": stopping, "hooks": ["hooks.py:log"]},
        **merge({**STILL, "eval": FINAL}, changes),
    )
    # Hooks write beside the job file.
    text = re.sub(r'"(steps|pid|early|waiting|go)', rf'"{job.folder}/\1', LOG)
    (job.folder / "hooks.py").write_text(text)
    return job


def status(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.job_dir / "status.json").read_text()))


def records(job: Job, kind: str) -> list[dict[str, Any]]:
    return records_of(job.job_dir, kind)


def evaluated(job: Job) -> list[int]:
    return [record["step"] for record in records(job, "eval")]


def exports(job: Job) -> list[Path]:
    return sorted((job.job_dir / "export" / "final").glob("[0-9]*"))


def steps(job: Job) -> dict[int, list[int]]:
    """The steps that each rank which trains has made."""
    return {int(p.name[6:]): [int(s) for s in p.read_text().split()] for p in job.folder.glob("steps-*")}


def raise_max_steps(job: Job, to: int) -> None:
    job.file.write_text(re.sub(r"max_steps: \d+", f"max_steps: {to}", job.file.read_text(), count=1))


def check_stopped(job: Job, rule: str, last: int | None = None, reason: str | None = None) -> int:
    """Whether the job has ended early, all of it made; returns its last step."""
    found, decision = status(job), json.loads((job.job_dir / "early_stop.json").read_text())
    step: int = found["step"]
    assert found["state"] == "succeeded"
    assert last is None or step == last
    assert found["stopped_early"] == {"step": step, "reason": decision["reason"]}
    assert re.fullmatch(reason or REASONS[rule], decision["reason"])
    assert (decision["step"], decision["max_steps"], list(decision["rule"])) == (step, MANY, [rule])
    assert evaluated(job)[-1] == step, "the last step is evaluated"
    assert evaluated(job).count(step) == 1
    (export,) = exports(job)
    assert json.loads((export / "hpc_train.json").read_text())["step"] == step
    assert (job.job_dir / "checkpoints" / f"step-{step:08d}").is_dir()
    assert (job.job_dir / "report.html").is_file() == (rule == REPORTED), "as `run.report` says"
    assert records(job, "end")[-1]["state"] == "succeeded"
    return step


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_rule_ends_all_ranks_after_the_same_step(make_job: MakeJob, ranks: int) -> None:
    jobs = {rule: ruled(make_job, rule) for rule in (RULES if ranks else list(RULES)[1:3])}
    if ranks:
        jobs["dedicated"] = ruled(make_job, "stop_if_lower", "dedicated", run={"chief": "dedicated"})
    again, further = jobs["stop_if_no_increase"], jobs["stop_if_lower"]
    turns = [*jobs.values(), again]
    done = train_in_turn(turns, ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = {"stop_if_no_decrease": 7, "stop_if_no_increase": 7, "stop_if_lower": 5, "stop_if_higher": 5}
    for name, job in jobs.items():
        if name == "dedicated":
            step = check_stopped(job, "stop_if_lower", reason=r"eval loss is lower than 1e\+09: \S+ at step \d+")
            assert steps(job) == {1: list(range(1, step + 1))}
            continue
        step = check_stopped(job, name, ends[name])
        assert steps(job) == {rank: list(range(1, step + 1)) for rank in range(max(1, ranks))}
    assert "stopping early: " in done.stdout
    assert f"nothing is left to train: {again.job_dir} stopped early at step 7 " in done.stdout

    for job in (again, further):
        raise_max_steps(job, MANY + 1 if job is again else 8)
    done = train_in_turn([again, further] if ranks else [again], ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    # Patience begins anew after the old decision: step 8 is the best now, and 12 the one that ends it.
    found = status(again)
    assert (found["step"], evaluated(again)) == (13, [2, 4, 6, 7, 8, 10, 12, 13])
    assert "at step 8, now at 12" in found["stopped_early"]["reason"]
    if ranks:  # max_steps that is no larger than it was leaves the decision as it is
        assert status(further)["step"] == 5
        assert evaluated(further) == [2, 4, 5]


def test_workers_of_an_asynchronous_job_stop_too(make_job: MakeJob) -> None:
    job = ruled(make_job, "stop_if_higher", run={"strategy": "async", "max_staleness": 2})
    done = train_in_turn([job, job], 2)
    assert done.returncode == 0, done.stdout + done.stderr
    found = status(job)
    step, decision = found["step"], json.loads((job.job_dir / "early_stop.json").read_text())
    assert step < MANY
    assert found["state"] == "succeeded"
    assert found["stopped_early"] == {"step": step, "reason": decision["reason"]}
    assert re.fullmatch(r"eval accuracy is higher than -1: \S+ at step \d+", decision["reason"])
    assert (decision["step"], decision["max_steps"]) == (step, MANY)
    assert evaluated(job)[-1] == step
    assert evaluated(job).count(step) == 1
    assert len(exports(job)) == 1
    assert steps(job) == {0: [], 1: list(range(1, step + 1))}, "the chief has hooks, but makes no steps"


def test_a_job_killed_between_its_decision_and_the_last_evaluation_is_finished_and_not_trained(
    make_job: MakeJob,
) -> None:
    rule = "stop_if_no_decrease"
    job = ruled(make_job, rule, eval={"hooks": ["hooks.py:waits"]})
    (job.folder / "early").write_text("7")
    program = ["-m", "hpc_train", "train", job.file, "--job-dir", job.job_dir]
    command = [*mpirun(2), *forked(program, environment())]
    with subprocess.Popen(
        command, env=environment(), cwd=job.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            wait_for(
                lambda: (job.folder / "waiting").exists() or process.poll() is not None, "the last evaluation begins"
            )
            assert process.poll() is None, process.communicate()[0]
            for rank in range(2):
                os.kill(int((job.folder / f"pid-{rank}").read_text()), signal.SIGKILL)
            process.communicate(timeout=LIMIT_SECS)
        finally:
            process.kill()
    assert json.loads((job.job_dir / "early_stop.json").read_text())["step"] == 7
    assert evaluated(job) == [2, 4, 6]
    assert exports(job) == []
    (job.folder / "go").touch()
    done = train_in_turn([job], 2)
    assert done.returncode == 0, done.stdout + done.stderr
    check_stopped(job, rule, 7)
    assert steps(job) == {rank: list(range(1, 8)) for rank in range(2)}, "no step was made again"

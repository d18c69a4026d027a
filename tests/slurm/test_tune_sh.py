"""slurm/tune.sh and --as-jobs on a real Slurm: trials on two nodes, a requeue in their midst, a node that dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import ended_as, job_environment, log, set_step_secs, write_job
from tests.support import BIN, REPOSITORY, run_program, wait_for

TUNE_SH = str(REPOSITORY / "slurm/tune.sh")


def write_study(folder: Path, max_trials: int, max_steps: int = 20) -> None:
    tune = {
        "goal": {"metric": "accuracy", "mode": "max"},
        "max_trials": max_trials,
        "space": {"params.units": {"int": [2, 64]}},
    }
    write_job(folder, max_steps=max_steps, save_checkpoints_steps=5, resources={"ranks_per_node": 1}, tune=tune)


def decisions(study: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(study.glob("decisions/[0-9]*.json"))]


def of(study: Path, kind: str) -> list[dict[str, Any]]:
    return [decision for decision in decisions(study) if decision["kind"] == kind]


def states(study: Path) -> list[str]:
    last = {decision["trial"]: decision["state"] for decision in of(study, "left")}
    return [last[number] for number in sorted(last)]


def test_an_allocation_is_requeued_and_survives_a_node_that_dies(
    slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path
) -> None:
    study, number = folder / "runs/tiny_study", 8
    write_study(folder, number)
    set_step_secs(folder, 0.2)
    job = submit(folder, "--nodes=2", "--ntasks-per-node=2", TUNE_SH, "job.yaml", anew=True)
    wait_for(lambda: len(of(study, "suggested")) >= 4, lambda: f"four trials at once\n{log(folder)}")
    wait_for(lambda: len(list(study.glob("trials/*/checkpoints/step-*"))) >= 4, "checkpoints")
    slurm_cluster.scancel(job, "--batch", "--signal=USR1")
    assert slurm_cluster.wait(job, until=["PENDING"]).state == "PENDING", log(folder)
    assert not [trial for trial in states(study) if trial == "failed"]

    wait_for(lambda: len(of(study, "taken")) >= 4, lambda: f"trials that go on\n{log(folder)}")
    wait_for(lambda: len(of(study, "suggested")) > 4, lambda: f"further trials\n{log(folder)}")
    slurm_cluster.kill_node("n2")
    set_step_secs(folder, 0.0)
    try:
        wait_for(lambda: "the study is over" in log(folder), lambda: log(folder))
    finally:
        slurm_cluster.start_node("n2")  # until then the job is completing
    assert ended_as(slurm_cluster.wait(job)) == ("COMPLETED", 0, 1), log(folder)
    assert [decision["trial"] for decision in of(study, "suggested")] == list(range(number))
    assert states(study) == ["completed"] * number
    wait_for(slurm_cluster._nodes_are_idle, "two idle nodes")


def test_an_array_of_jobs_shares_a_study(slurm_cluster: SlurmCluster, folder: Path) -> None:
    study, number = folder / "runs/tiny_study", 6
    write_study(folder, number)
    env = {**slurm_cluster.env, **job_environment(slurm_cluster, anew=True)}
    done = run_program([str(BIN / "hpc-train"), "tune", "job.yaml", "--as-jobs", "3"], folder, **env)
    assert done.returncode == 0, done.stderr
    assert "3 jobs of the study submitted, as" in done.stderr

    def printed() -> str:
        return "\n".join(path.read_text() for path in sorted((study / "jobs").glob("*.out")))

    wait_for(lambda: printed().count("the study is over: all trials have been tried") == 3, printed)
    suggested = of(study, "suggested")
    assert [decision["trial"] for decision in suggested] == list(range(number))
    assert states(study) == ["completed"] * number
    assert len({decision["driver"] for decision in suggested}) > 1, "one job alone has run all trials"
    wait_for(slurm_cluster._nodes_are_idle, "two idle nodes")


def test_jobs_train_the_members_of_an_ensemble_and_one_combines_them(slurm_cluster: SlurmCluster, folder: Path) -> None:
    made = folder / "runs/tiny_ensemble"
    write_job(folder, max_steps=20, save_checkpoints_steps=5, resources={"ranks_per_node": 1}, ensemble={"members": 3})
    env = {**slurm_cluster.env, **job_environment(slurm_cluster, anew=True)}
    done = run_program([str(BIN / "hpc-train"), "ensemble", "job.yaml", "--as-jobs", "2"], folder, **env)
    assert done.returncode == 0 and "2 jobs of the ensemble submitted, as" in done.stderr, done.stderr

    def printed() -> str:
        return "\n".join(path.read_text() for path in sorted((made / "jobs").glob("*.out")))

    wait_for(lambda: printed().count("export: ") == 2, printed)
    assert states(made) == ["completed"] * 3
    assert printed().count("combining 3 members") == len(list((made / "export/ensemble").glob("[0-9]*"))) == 1
    wait_for(slurm_cluster._nodes_are_idle, "two idle nodes")
    again = run_program([str(BIN / "hpc-train"), "tune", "runs/tiny_ensemble"], folder)
    assert again.returncode == 0 and "the ensemble is over: all members have been tried" in again.stdout, again.stderr
    assert "to combine them: hpc-train ensemble runs/tiny_ensemble" in again.stdout
    again = run_program([str(BIN / "hpc-train"), "ensemble", "runs/tiny_ensemble"], folder)
    assert again.returncode == 0 and "combining" not in again.stdout, again.stderr

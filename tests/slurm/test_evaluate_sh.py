"""slurm/evaluate.sh on a real Slurm: it follows a job in another one, goes on after a requeue, and ends by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import (
    TRAIN_SH,
    ended_as,
    log,
    set_step_secs,
    status,
    write_job,
)
from tests.support import REPOSITORY, records_of, wait_for

EVALUATE_SH = str(REPOSITORY / "slurm/evaluate.sh")


def results(folder: Path) -> list[dict[str, Any]]:
    return records_of(folder, "eval")


def test_it_follows_a_job_that_is_submitted_later_and_ends_with_it(
    slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path
) -> None:
    job_dir, out = folder / "my run", folder / "my run.evaluation"
    write_job(folder, max_steps=100_000, save_checkpoints_steps=5)
    set_step_secs(folder, 0.2)
    options = [EVALUATE_SH, "my run", "--poll-secs", "0.5"]
    evaluator = submit(folder, f"--output={folder}/evaluate.out", *options)
    training = submit(folder, "--nodes=1", "--ntasks=1", TRAIN_SH, "job.yaml", "--job-dir", "my run")
    wait_for(lambda: bool(results(out)), "an evaluation")

    slurm_cluster.scancel(training, "--batch", "--signal=USR1")  # both save what they have, and come back
    slurm_cluster.scancel(evaluator, "--batch", "--signal=USR1")
    for job in (training, evaluator):
        assert slurm_cluster.wait(job, until=["PENDING"]).state == "PENDING", log(folder)
    end = status(job_dir)["step"] + 20
    write_job(folder, max_steps=end, save_checkpoints_steps=5)

    assert ended_as(slurm_cluster.wait(training)) == ("COMPLETED", 0, 1), log(folder)
    said = folder / "evaluate.out"
    assert ended_as(slurm_cluster.wait(evaluator)) == ("COMPLETED", 0, 1), said.read_text()
    found, own = results(out), {record["step"]: record for record in results(job_dir)}
    steps = [record["step"] for record in found]
    assert steps == sorted(set(steps))
    assert steps[-1] == end
    for record in found:
        if record["step"] in own:
            assert record["loss"] == pytest.approx(own[record["step"]]["loss"], rel=1e-5)
    assert "training has ended (succeeded)" in said.read_text()


def test_it_asks_for_the_job_dir(slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path) -> None:
    result = slurm_cluster.wait(submit(folder, EVALUATE_SH))

    assert (result.state, result.exit_code) == ("FAILED", 2), log(folder)
    assert "the job-dir is missing" in log(folder)

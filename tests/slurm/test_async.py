"""Parameter servers on two nodes of a real Slurm, which share nothing but the network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import TRAIN_SH, ended_as, log, set_step_secs, starts, status, wait_for_checkpoint, write_job
from tests.support import variables

THREE_RANKS = ("--nodes=2", "--ntasks=3", "--ntasks-per-node=2")
RUN = {"strategy": "async", "save_checkpoints_steps": 50, "tf_random_seed": 1, "report": False}


def test_trains_on_two_nodes_and_goes_on_after_a_warning(
    slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path
) -> None:
    """The server and a worker on one node, a worker on the other; Slurm warns, and starts the job again."""
    job_dir = folder / "runs/tiny"
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=50, run=RUN)
    set_step_secs(folder, 0.02)  # which leaves the cores to others
    job = submit(folder, *THREE_RANKS, TRAIN_SH, "job.yaml")
    wait_for_checkpoint(job_dir)

    slurm_cluster.scancel(job, "--batch", "--signal=USR1")

    assert slurm_cluster.wait(job, until=["PENDING"]).state == "PENDING", log(folder)
    assert "the job is back in the queue (warning)" in log(folder)
    stopped = status(job_dir)
    assert stopped["state"] == "requeued"
    saved = stopped["step"]
    assert (job_dir / f"checkpoints/step-{saved:08d}").is_dir()
    end = saved + 60
    write_job(folder, max_steps=end, save_checkpoints_steps=50, run=RUN)

    result = slurm_cluster.wait(job)
    assert ended_as(result) == ("COMPLETED", 0, 1), log(folder)
    assert (status(job_dir)["state"], status(job_dir)["step"]) == ("succeeded", end), log(folder)
    assert starts(job_dir) == [0, saved]
    steps = status(job_dir)["steps_by_rank"]
    assert sum(steps.values()) == end - saved
    assert steps.keys() == {"1", "2"}
    found = variables(job_dir, end)
    assert int(found["optimizer/adam.iteration"]) == end
    assert all(np.isfinite(array).all() for array in found.values())
    assert "Data for node: n2" in log(folder)
    assert len(list((job_dir / "export/final").iterdir())) == 1

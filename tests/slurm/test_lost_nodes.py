"""Jobs with min_nodes on a real Slurm that lose nodes and ranks: they go on in their allocation, or are requeued.

Two jobs check all of it, each struck several times, and a third one `hpc-train launch` in a script of the user's own.
What came of a stroke is waited for before the next.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.test_slurm import BOOT_SECS
from tests.ranks import hpc_train
from tests.slurm.cluster import SlurmCluster, missing_requirements
from tests.slurm.jobs import (
    TRAIN_SH,
    ended_as,
    job_environment,
    log,
    make_folder,
    newest_step,
    not_here,
    set_step_secs,
    starts,
    status,
    write_job,
)
from tests.support import REPOSITORY, records_of, variables, wait_for

MAX_STEPS, SAVE_STEPS = 60, 10
RUN = {"save_checkpoints_steps": SAVE_STEPS, "tf_random_seed": 1, "report": False}
STUCK_SECS, QUICK_SECS = 1000.0, 0.3
"""How long a step takes of a job that is to live until it is struck, and of others."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with SlurmCluster(cpus_per_node=4, slurmd_timeout_secs=15, nodes=5) as found:
        yield found


class Job:
    """A job with so many ranks on each of its nodes, in a folder of its own.

    `run`: more keys of run:. `script`: the user's own in place of train.sh.
    """

    def __init__(
        self,
        cluster: SlurmCluster,
        folder: Path,
        nodes: str,
        per_node: int = 1,
        run: Mapping[str, Any] = {},
        script: str | None = None,
        **env: str,
    ) -> None:
        self.cluster, self.folder, self.job_dir = cluster, make_folder(folder), folder / "runs/tiny"
        write_job(folder, MAX_STEPS, SAVE_STEPS)
        if run:
            write_job(folder, MAX_STEPS, SAVE_STEPS, run={**RUN, **run})
        set_step_secs(folder, QUICK_SECS)
        count = len(nodes.split(","))
        flags = [f"--output={folder}/job.out", "--no-kill", f"--nodes={count}", f"--ntasks-per-node={per_node}"]
        more = {"HPC_TRAIN_HOME": str(REPOSITORY), "OMPI_MCA_btl": "self,tcp", **env}
        if script is not None:
            (folder / "script.sh").write_text(script)
        sizes = [f"--nodelist={nodes}", *([TRAIN_SH, "job.yaml"] if script is None else ["script.sh"])]
        self.number = cluster.sbatch([*flags, *sizes], folder, {**job_environment(cluster, anew=True), **more})

    def be_in_mid_step(self) -> int:
        """Waits until the run that goes on has saved, and lets it stay in a step; the newest step saved."""
        wait_for(self.is_in_mid_step, lambda: f"a checkpoint: {log(self.folder)}")
        return newest_step(self.job_dir)

    def is_in_mid_step(self) -> bool:
        """Whether the run that goes on has saved; if so, it stays in a step."""
        at = starts(self.job_dir)[-1] if self.job_dir.exists() and starts(self.job_dir) else 0
        if newest_step(self.job_dir) <= at:
            return False
        set_step_secs(self.folder, STUCK_SECS)
        return True

    def has_started(self, times: int, secs: float) -> None:
        """Waits until the ranks have been started so often; a step takes `secs` from then on."""
        wait_for(
            lambda: self.job_dir.exists() and len(starts(self.job_dir)) >= times,
            lambda: f"start {times}: {log(self.folder)}",
            every=0.2,
        )
        set_step_secs(self.folder, secs)


LAUNCH = """#!/bin/bash
exec hpc-train launch --min-hosts 1 --max-restarts 2 job.yaml
"""


def boot(cluster: SlurmCluster, node: str) -> None:
    """See tests/faults/test_slurm.py for the waiting."""
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=booting"])
    cluster.start_node(node)
    time.sleep(BOOT_SECS)
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


def train(folder: Path, ranks: int) -> None:
    done = hpc_train(["train", str(folder / "job.yaml"), "--job-dir", str(folder / "runs/tiny")], ranks, folder)
    assert done.returncode == 0, done.stderr


def assert_same_weights(one: Path, other: Path, step: int) -> None:
    mine, its = variables(one, step), variables(other, step)
    assert mine.keys() == its.keys()
    for name, values in its.items():
        np.testing.assert_array_equal(mine[name], values, err_msg=f"{name} at step {step}")


def test_lost_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    on_two = Job(cluster, tmp_path / "on two", "n4,n5", HPC_TRAIN_MIN_NODES="2")
    spare = {"HPC_TRAIN_MIN_NODES": "1", "HPC_TRAIN_SPARE_NODES": "1"}
    with_spare = Job(cluster, tmp_path / "with spare", "n1,n2,n3", **spare)
    launched = Job(cluster, tmp_path / "launched", "n3,n5", script=LAUNCH)
    jobs = with_spare, on_two, launched

    # A node dies: the spare one takes its place, and nothing else changes. Of the other job too few are left.
    wait_for(
        lambda: sum(job.is_in_mid_step() for job in jobs) == len(jobs), lambda: "".join(log(job.folder) for job in jobs)
    )
    cluster.kill_node("n2")
    cluster.kill_node("n5")
    with_spare.has_started(2, STUCK_SECS)
    assert re.search("n2 (does not answer|is down), 2 ranks on 2 nodes: n1, n3", log(with_spare.folder))
    wait_for(lambda: "the job is back in the queue (lost-node)" in log(on_two.folder), "a requeue")
    assert "1 usable node left of 2, and min_nodes is 2" in log(on_two.folder)
    set_step_secs(on_two.folder, 0)
    launched.has_started(2, 0)
    boot(cluster, "n5")

    # A rank dies while a node is drained: that node is left out, and the job goes on alone.
    set_step_secs(with_spare.folder, QUICK_SECS)
    saved = with_spare.be_in_mid_step()
    cluster.run(["scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test"])
    os.kill(status(with_spare.job_dir)["pid"], signal.SIGKILL)
    with_spare.has_started(3, 0)
    assert re.search(r"n3 is drain\w+, 1 rank on 1 node: n1", log(with_spare.folder))
    went_on = starts(with_spare.job_dir)
    assert went_on[2] >= saved

    assert ended_as(cluster.wait(with_spare.number)) == ("COMPLETED", 0, 0), log(with_spare.folder)
    assert ended_as(cluster.wait(on_two.number)) == ("COMPLETED", 0, 1), log(on_two.folder)
    assert ended_as(cluster.wait(launched.number)) == ("COMPLETED", 0, 0), log(launched.folder)
    assert re.search("; restart 1 of 2 at once, from step", log(launched.folder))
    told = status(launched.job_dir)
    assert (told["state"], told["step"], told["ranks"], told["restarts"]) == ("succeeded", MAX_STEPS, 1, 1)
    assert re.fullmatch("n5 (does not answer|is down), 1 rank on 1 host: n3", told["restart_reason"])
    told = status(with_spare.job_dir)
    assert (told["state"], told["step"], told["ranks"], told["restarts"]) == ("succeeded", MAX_STEPS, 1, 2)
    assert re.fullmatch(r"n2 .*, n3 is drain\w+, 1 rank on 1 node: n1", told["restart_reason"])
    reasons = [record.get("reason") for record in records_of(with_spare.job_dir, "start")]
    assert reasons[0] is None and reasons[1].startswith("n2 ") and reasons[2] == told["restart_reason"]

    # The weights are those of runs that nothing befell.
    undisturbed = make_folder(tmp_path / "undisturbed")
    write_job(undisturbed, MAX_STEPS, SAVE_STEPS)
    train(undisturbed, 2)
    assert_same_weights(on_two.job_dir, undisturbed / "runs/tiny", MAX_STEPS)
    assert_same_weights(with_spare.job_dir, undisturbed / "runs/tiny", went_on[2])
    stopped = make_folder(tmp_path / "stopped")
    for ranks, steps in ((2, went_on[2]), (1, MAX_STEPS)):
        write_job(stopped, steps, SAVE_STEPS)
        train(stopped, ranks)
    assert_same_weights(with_spare.job_dir, stopped / "runs/tiny", MAX_STEPS)

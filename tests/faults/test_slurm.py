"""Faults that come through Slurm, on a real one of two nodes: limits, preemption, cancelling, dead nodes.

All jobs run at once, since most of their time is waiting: for Slurm to look at time limits (every 30 s), to start a job
again (15 s), and for Python to start. So `struck` makes all the faults happen, and each test looks at what came of one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.slurm.cluster import FINISHED, JobResult, SlurmCluster, missing_requirements
from tests.slurm.jobs import (
    MODEL,
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
from tests.support import REPOSITORY, variables, wait_for

MAX_STEPS, SAVE_STEPS = 60, 10
SLOW_STEP_SECS = 4.0
BOOT_SECS = 12.0

ONE_RANK = ("--nodes=1", "--ntasks-per-node=1")
TWO_RANKS = ("--nodes=1", "--ntasks-per-node=2")
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")


@dataclass(frozen=True)
class SlurmJob:
    """A job of MAX_STEPS steps, in a folder of its own. `number` is what Slurm calls it (5, or 5_1)."""

    cluster: SlurmCluster
    folder: Path
    number: int | str
    job_dir: Path

    def result(self) -> JobResult:
        """Waits until the job has ended for good."""
        return self.cluster.wait(self.number)

    def status(self) -> dict[str, Any]:
        return status(self.job_dir)

    def log(self) -> str:
        return log(self.folder)

    def stop_chief(self) -> None:
        """SIGSTOP to rank 0: a save that does not finish."""
        os.kill(self.status()["pid"], signal.SIGSTOP)

    def end_in(self, secs: float) -> None:
        """Moves the job's time limit."""
        when = (datetime.now() + timedelta(seconds=secs)).strftime("%Y-%m-%dT%H:%M:%S")
        self.cluster.run(["scontrol", "update", f"JobId={self.number}", f"EndTime={when}"])

    def weights(self) -> dict[str, np.ndarray]:
        return variables(self.job_dir, MAX_STEPS)


class Jobs:
    """Makes and submits jobs, and looks after those that are in the queue again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting: list[SlurmJob] = []

    def submit(
        self,
        cluster: SlurmCluster,
        name: str,
        *args: str,
        step_secs: float = 0.5,
        model: str = MODEL,
        anew: bool = False,
        **env: str,
    ) -> SlurmJob:
        """Submits a job; `anew` as in job_environment, `env` is laid over that."""
        folder = make_folder(self.folder / name)
        (folder / "model.py").write_text(model)
        write_job(folder, MAX_STEPS, SAVE_STEPS)
        set_step_secs(folder, step_secs)
        flags = [f"--output={folder}/job.out", *args, TRAIN_SH, "job.yaml"]
        number = cluster.sbatch(flags, folder, {**_environment(cluster, anew), **env})
        self._waiting.append(SlurmJob(cluster, folder, number, folder / "runs/tiny"))
        return self._waiting[-1]

    def submit_array(self, cluster: SlurmCluster, name: str) -> list[SlurmJob]:
        """Two tasks; each has a job file, and so a job-dir, of its own."""
        folder = make_folder(self.folder / name)
        for task in (0, 1):
            write_job(folder, MAX_STEPS, SAVE_STEPS, name=f"task{task}")
            (folder / "job.yaml").rename(folder / f"task-{task}.yaml")
        set_step_secs(folder, 0.5)
        script = 'exec "$HPC_TRAIN_HOME/slurm/train.sh" "task-$SLURM_ARRAY_TASK_ID.yaml"'
        flags = ["--array=0-1", f"--output={folder}/job.out", "--open-mode=append", "--requeue", *ONE_RANK]
        number = cluster.sbatch([*flags, f"--wrap={script}"], folder, _environment(cluster))
        tasks = [SlurmJob(cluster, folder, f"{number}_{task}", folder / f"runs/task{task}") for task in (0, 1)]
        self._waiting += tasks
        return tasks

    def wait_for_checkpoints(self, *jobs: SlurmJob) -> None:
        """Waits until all of them have saved, and has each go on slowly from there: none ends before it is struck."""
        waiting = list(jobs)

        def all_have_saved() -> bool:
            self._look_after_restarts()
            for job in list(waiting):
                assert job.cluster.show(job.number).state not in FINISHED, job.log()
                if newest_step(job.job_dir) >= SAVE_STEPS:
                    set_step_secs(job.folder, SLOW_STEP_SECS)
                    waiting.remove(job)
            return not waiting

        wait_for(all_have_saved, f"these have saved: {[job.folder.name for job in jobs]}", every=1.0)

    def wait_for_restarts(self, *jobs: SlurmJob) -> None:
        """Waits until Slurm has put all of them back into the queue."""

        def all_are_back() -> bool:
            self._look_after_restarts()
            return not any(job in self._waiting for job in jobs)

        wait_for(all_are_back, f"these are back in the queue: {[job.folder.name for job in jobs]}", every=1.0)

    def _look_after_restarts(self) -> None:
        """A job that comes back finishes quickly, and does not come to a time limit again."""
        for job in [job for job in self._waiting if job.cluster.show(job.number).restarts > 0]:
            set_step_secs(job.folder, 0)
            with suppress(RuntimeError):  # Slurm is still ending the run before
                job.cluster.run(["scontrol", "update", f"JobId={job.number}", "TimeLimit=30"])
                self._waiting.remove(job)


def _environment(cluster: SlurmCluster, anew: bool = False) -> dict[str, str]:
    return {**job_environment(cluster, anew), "HPC_TRAIN_HOME": str(REPOSITORY)}


SCONTROL_THAT_FAILS = """\
#!/bin/bash
[[ ! -e broken ]] || export SLURM_CONF=/nonexistent
exec {scontrol} "$@"
"""
"""scontrol, which finds no slurmctld while there is a file called `broken`, as on a node that may not reach it."""

DIES_AT_THE_WARNING = """
import os, signal, subprocess, time
subprocess.run(["scancel", "--batch", "--signal=USR1", os.environ["SLURM_JOB_ID"]])
time.sleep(2)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A model whose start takes longer than what is left after the warning."""


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SlurmJob]]:
    """The jobs by name, each after its fault; the fixture's code says what befalls which."""
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with (
        SlurmCluster(cpus_per_node=32, preempt_send_user_signal=True) as cluster,
        SlurmCluster(cpus_per_node=8, slurmd_timeout_secs=15) as fragile,
    ):
        jobs = Jobs(tmp_path_factory.mktemp("jobs"))
        n1, n2 = "--nodelist=n1", "--nodelist=n2"
        warned = "--signal=B:USR1@60"
        array = jobs.submit_array(cluster, "array")
        found = {
            "time limit": jobs.submit(cluster, "time limit", n1, *TWO_RANKS, "--time=30", warned),
            "short lead": jobs.submit(cluster, "short lead", n1, *ONE_RANK, "--time=30", warned),
            "no warning": jobs.submit(cluster, "no warning", n1, *ONE_RANK, "--time=30", "--signal=B:USR1@0"),
            "preempted": jobs.submit(cluster, "preempted", n2, *ONE_RANK),
            "short grace": jobs.submit(cluster, "short grace", n2, *ONE_RANK, "--partition=hasty"),
            "array 0": array[0],
            "array 1": array[1],
            "all ranks on a dead node": jobs.submit(fragile, "all ranks", n2, *ONE_RANK, anew=True),
            "one rank on a dead node": jobs.submit(fragile, "one rank", *TWO_NODES, anew=True),
        }
        jobs.wait_for_checkpoints(*found.values())
        fragile.kill_node("n2")
        found["no warning"].end_in(30)
        found["time limit"].end_in(60)
        found["short lead"].stop_chief()
        found["short lead"].end_in(50)
        found["short grace"].stop_chief()
        cluster.sbatch(["--partition=urgent", n2, "--exclusive", "--output=/dev/null", "--wrap=true"], jobs.folder)
        cluster.scancel(array[0].number, "--batch", "--signal=USR1")
        jobs.wait_for_restarts(array[0])  # which lets the other one end as well: they share step_secs

        path = f"{_scontrol_that_fails(jobs.folder)}:{job_environment(cluster)['PATH']}"
        found |= {
            "reference": jobs.submit(cluster, "reference", n1, *ONE_RANK, step_secs=0),
            "reference of 2": jobs.submit(cluster, "reference of 2", n1, *TWO_RANKS, step_secs=0),
            "no scontrol": jobs.submit(cluster, "no scontrol", n1, *ONE_RANK, PATH=path),
            "killed": jobs.submit(cluster, "killed", n1, *TWO_RANKS),
            "cancelled": jobs.submit(cluster, "cancelled", n1, *ONE_RANK),
            "no progress": jobs.submit(cluster, "no progress", n1, *ONE_RANK, model=DIES_AT_THE_WARNING),
        }
        jobs.wait_for_checkpoints(*(found[name] for name in ("no scontrol", "killed", "cancelled")))
        (found["no scontrol"].folder / "broken").touch()
        cluster.scancel(found["no scontrol"].number, "--batch", "--signal=USR1")
        os.kill(found["killed"].status()["pid"], signal.SIGKILL)
        cluster.scancel(found["cancelled"].number)
        struck_jobs = ("time limit", "short lead", "no warning", "preempted", "short grace")
        dead_nodes = ("all ranks on a dead node", "one rank on a dead node")
        jobs.wait_for_restarts(*(found[name] for name in (*struck_jobs, *dead_nodes)))
        assert found["one rank on a dead node"].status()["state"] == "requeued"
        # About five seconds after the node is back, Slurm 22.05 cancels step 0 of a job that died with it, even if that
        # is by now the next run's. A node that really boots has seldom a run so soon.
        fragile.run(["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=booting"])
        fragile.start_node("n2")
        time.sleep(BOOT_SECS)
        fragile.run(["scontrol", "update", "NodeName=n2", "State=RESUME"])
        yield found


def _scontrol_that_fails(folder: Path) -> Path:
    """The folder of SCONTROL_THAT_FAILS."""
    (folder / "bin").mkdir()
    scontrol = folder / "bin/scontrol"
    scontrol.write_text(SCONTROL_THAT_FAILS.format(scontrol=shutil.which("scontrol")))
    scontrol.chmod(0o755)
    return scontrol.parent


def assert_finished(job: SlurmJob, restarts: int, reference: SlurmJob) -> None:
    """Finished after so many restarts, with the weights of the job that nothing befell, bit for bit."""
    assert ended_as(job.result()) == ("COMPLETED", 0, restarts), job.log()
    assert ended_as(reference.result()) == ("COMPLETED", 0, 0), reference.log()
    assert (job.status()["state"], job.status()["step"]) == ("succeeded", MAX_STEPS)
    assert job.status()["restarts"] == restarts
    mine, its = job.weights(), reference.weights()
    assert mine.keys() == its.keys()
    for name, values in its.items():
        np.testing.assert_array_equal(mine[name], values, err_msg=name)


def times_requeued(job: SlurmJob) -> int:
    return job.log().count("the job is back in the queue")


def test_a_time_limit(struck: dict[str, SlurmJob]) -> None:
    job = struck["time limit"]
    assert_finished(job, 1, struck["reference of 2"])
    first, second = starts(job.job_dir)
    assert first == 0
    assert SAVE_STEPS <= second < MAX_STEPS
    assert times_requeued(job) == 1


def test_a_time_limit_with_too_short_a_warning_for_the_save(struck: dict[str, SlurmJob]) -> None:
    job = struck["short lead"]
    assert_finished(job, 1, struck["reference"])
    # At the end of a job mpirun continues a stopped rank a second before it kills it: that may be enough to save.
    assert SAVE_STEPS <= starts(job.job_dir)[1] < MAX_STEPS
    assert "no time is left to wait for the ranks' checkpoint" in job.log()
    assert times_requeued(job) == 1
    assert "DUE TO TIME LIMIT" not in job.log()


def test_a_time_limit_that_comes_without_a_warning(struck: dict[str, SlurmJob]) -> None:
    job = struck["no warning"]
    assert_finished(job, 1, struck["reference"])
    assert "DUE TO TIME LIMIT" in job.log()
    assert times_requeued(job) == 1


def test_preemption_with_grace(struck: dict[str, SlurmJob]) -> None:
    job = struck["preempted"]
    assert_finished(job, 1, struck["reference"])
    assert times_requeued(job) == 1
    assert "DUE TO PREEMPTION" not in job.log(), "it left by itself, in the grace time"


def test_preemption_with_a_grace_shorter_than_the_save(struck: dict[str, SlurmJob]) -> None:
    job = struck["short grace"]
    assert_finished(job, 1, struck["reference"])
    assert starts(job.job_dir)[1] % SAVE_STEPS == 0, "an older checkpoint"
    assert times_requeued(job) == 0, "Slurm did it"


def test_of_an_array_the_task_that_is_signalled_goes_back_alone(struck: dict[str, SlurmJob]) -> None:
    assert_finished(struck["array 0"], 1, struck["reference"])
    assert_finished(struck["array 1"], 0, struck["reference"])


def test_a_cancelled_job_stays_cancelled(struck: dict[str, SlurmJob]) -> None:
    job = struck["cancelled"]
    assert (job.result().state, job.result().restarts) == ("CANCELLED", 0)
    wait_for(lambda: job.status()["state"] == "cancelled", lambda: job.status())
    assert times_requeued(job) == 0


def test_a_rank_killed_fails_the_job(struck: dict[str, SlurmJob]) -> None:
    job = struck["killed"]
    assert ended_as(job.result()) == ("FAILED", 137, 0), job.log()
    assert (job.status()["state"], job.status()["error"]["signal"]) == ("failed", "SIGKILL")


def test_where_scontrol_fails_the_command_that_is_told_works(struck: dict[str, SlurmJob]) -> None:
    job = struck["no scontrol"]
    assert ended_as(job.result()) == ("FAILED", 8, 0), job.log()
    assert job.status()["state"] == "stopped"
    assert times_requeued(job) == 0
    command = re.search(r"Type where scontrol works: (.*)", job.log())
    assert command is not None, job.log()

    job.cluster.run(shlex.split(command[1]))

    assert (job.cluster.show(job.number).state, job.cluster.show(job.number).restarts) == ("PENDING", 1)


def test_a_job_that_never_saves_anything_is_requeued_twice_and_no_more(struck: dict[str, SlurmJob]) -> None:
    job = struck["no progress"]
    assert ended_as(job.result()) == ("FAILED", 8, 2), job.log()
    assert "3 runs in a row have saved no checkpoint;" in job.log()


def test_a_job_comes_back_from_a_dead_node(struck: dict[str, SlurmJob]) -> None:
    """Slurm starts it again where its script has died with the node; else the script asks for that.

    Once more where Slurm has cancelled the next run's step 0, see `struck`: the script asks for that, too.
    """
    for name, reference, asked in (("all ranks", "reference", 0), ("one rank", "reference of 2", 1)):
        job = struck[f"{name} on a dead node"]
        restarts = job.result().restarts
        assert restarts in (1, 2), job.log()
        assert_finished(job, restarts, struck[reference])
        assert starts(job.job_dir)[1] >= SAVE_STEPS
        assert times_requeued(job) == restarts - 1 + asked

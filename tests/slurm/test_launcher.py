"""Srun as the launcher of slurm/train.sh and of hpc-train launch, on two nodes: weights, signals and exit codes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil

from tests.slurm.back_ends import BackEnd, make_program
from tests.slurm.cluster import JobResult, SlurmCluster
from tests.slurm.jobs import (
    TRAIN_SH,
    ended_as,
    job_environment,
    log,
    make_folder,
    set_step_secs,
    starts,
    status,
    wait_for_checkpoint,
    write_job,
)
from tests.slurm.test_lost_nodes import assert_same_weights
from tests.support import wait_for

# The two nodes are one machine, on which Open MPI would have them share memory that each has for itself.
BUSY = re.compile(r"srun: (Job \d+ step creation (temporarily disabled|still disabled)|Step created for job )")
"""Of a step that waits for the nodes of the one before."""
ONE_MACHINE = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_osc": "pt2pt"}


def start(cluster: SlurmCluster, folder: Path, launcher: str = "srun", **env: str) -> int:
    env = {**job_environment(cluster, anew=True), **ONE_MACHINE, "HPC_TRAIN_LAUNCHER": launcher, **env}
    words = ["--nodes=2", "--ntasks-per-node=1", f"--output={folder}/job.out", TRAIN_SH, "job.yaml"]
    return cluster.sbatch(words, cwd=folder, env=env)


LAUNCH = """#!/bin/bash
turn() {
    bash -c 'echo $$ >$0.pid; exec hpc-train launch --launcher srun -n 2 "${@}" job.yaml' "$@" >$1.out 2>&1
    echo $? >$1.code.new
    mv $1.code.new $1.code
}
turn crash --max-restarts 1
turn twice
turn killed
SLURM_MPI_TYPE=none turn unknown
true
"""


def ranks_of(job: int | str, word: str = "train") -> dict[int, psutil.Process]:
    """The job's ranks that live, by number; their command has the `word`."""
    found = {}
    for process in psutil.process_iter():
        try:
            env = process.environ()
            ours = env.get("SLURM_JOB_ID") == str(job) and "PMIX_RANK" in env and word in process.cmdline()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found[int(env["PMIX_RANK"])] = process
        except psutil.Error:
            continue
    return found


def end(cluster: SlurmCluster, job: int) -> JobResult:
    """Of the job, once none of its ranks is left."""
    result = cluster.wait(job)
    wait_for(lambda: not ranks_of(job), "the end of all ranks")
    return result


def test_srun_trains_the_same_weights(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    by_srun, by_mpirun = (make_folder(tmp_path / name) for name in ("by srun", "by mpirun"))
    for folder, launcher in ((by_srun, "srun"), (by_mpirun, "mpirun")):
        result = end(slurm_cluster, start(slurm_cluster, folder, launcher))
        assert ended_as(result) == ("COMPLETED", 0, 0), log(folder)
        assert (status(folder / "runs/tiny")["step"], status(folder / "runs/tiny")["state"]) == (20, "succeeded")
        assert ("Data for node" in log(folder)) == (launcher == "mpirun"), "which mpirun alone prints"
    assert_same_weights(by_srun / "runs/tiny", by_mpirun / "runs/tiny", 20)


def test_jobs_of_srun_end_as_those_of_mpirun(slurm_cluster: SlurmCluster, folder: Path) -> None:
    """A mistake, TERM, a rank that is killed, a warning, an exception, scancel; jobs go on where they have saved."""
    model = (folder / "model.py").read_text()
    fails = '        if os.environ.get("PMIX_RANK") == "1" and STEP_SECS.with_name("fail").exists():\n'
    fails += '            raise RuntimeError("asked to fail")\n'
    (folder / "model.py").write_text(
        model.replace("        begin = time.monotonic()\n", fails + "        begin = time.monotonic()\n")
    )
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=20, trian={})
    assert ended_as(end(slurm_cluster, start(slurm_cluster, folder))) == ("FAILED", 2, 0), log(folder)
    assert "trian" in log(folder)
    refused = ended_as(end(slurm_cluster, start(slurm_cluster, folder, HPC_TRAIN_MIN_NODES="1")))
    assert refused == ("FAILED", 2, 0) and "need launcher: mpirun" in log(folder)
    refused = ended_as(end(slurm_cluster, start(slurm_cluster, folder, SLURM_MPI_TYPE="none")))
    assert refused == ("FAILED", 2, 0) and "launcher: mpirun" in log(folder), log(folder)
    assert "direct launched" not in log(folder), "MPI is not started"

    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=20)
    set_step_secs(folder, 0.05)  # which leaves the cores to others
    job_dir = folder / "runs/tiny"
    job = start(slurm_cluster, folder)
    wait_for_checkpoint(job_dir)
    slurm_cluster.scancel(job, "--batch", "--signal=TERM")
    assert ended_as(end(slurm_cluster, job)) == ("FAILED", 3, 0), log(folder)
    assert "stopped after saving; submit again to continue" in log(folder)
    stopped = status(job_dir)["step"]
    assert status(job_dir)["state"] == "stopped" and (job_dir / f"checkpoints/step-{stopped:08d}").is_dir()

    job = start(slurm_cluster, folder)
    wait_for(lambda: len(starts(job_dir)) == 2, "the second start")
    ranks_of(job)[1].send_signal(signal.SIGKILL)
    assert ended_as(end(slurm_cluster, job)) == ("FAILED", 137, 0), log(folder)
    assert starts(job_dir) == [0, stopped]
    assert "n2: task 1: Killed" in log(folder) and "Terminating" not in log(folder), log(folder)

    job = start(slurm_cluster, folder)
    wait_for(lambda: len(starts(job_dir)) == 3, "the third start")
    newest = status(job_dir)["step"]
    wait_for(lambda: status(job_dir)["step"] > newest, "steps")
    slurm_cluster.scancel(job, "--batch", "--signal=USR1")
    wait_for(lambda: len(starts(job_dir)) == 4, lambda: f"the start of the requeued job\n{log(folder)}")
    assert "the job is back in the queue (warning)" in log(folder)
    assert starts(job_dir)[3] >= newest, "where it has saved"
    (folder / "fail").touch()
    assert ended_as(end(slurm_cluster, job)) == ("FAILED", 1, 1), log(folder)
    assert "rank 1 failed" in log(folder) and "asked to fail" in log(folder)
    assert status(job_dir)["state"] == "failed"
    (folder / "fail").unlink()

    job = start(slurm_cluster, folder)
    wait_for(lambda: len(starts(job_dir)) == 5, "the fifth start")
    slurm_cluster.scancel(job)
    assert end(slurm_cluster, job).state == "CANCELLED"


def test_a_submitted_job_names_the_rank_that_has_ended(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    with BackEnd(tmp_path, slurm_cluster) as back_end:
        file = make_program(back_end.code / "by_srun", name="by_srun", nodes=2, ranks_per_node=1, launcher="srun")
        (file.parent / "trainer/task.py").write_text("import time\n\ntime.sleep(3600)\n")
        job = back_end.submit_file(file, "by_srun")
        wait_for(lambda: len(ranks_of(job.number, "trainer.task")) == 2, lambda: f"two ranks\n{job.log()}")
        ranks_of(job.number, "trainer.task")[1].send_signal(signal.SIGKILL)
        assert job.end() == ("FAILED", 137), job.log()
        error = job.status()["error"]
    assert (error["rank"], error["signal"], error["message"]) == (1, "SIGKILL", "rank 1 on n2 was killed by SIGKILL")


def test_hpc_train_launch_by_srun(slurm_cluster: SlurmCluster, folder: Path) -> None:
    """A crash with a restart, Ctrl-C once and twice, a crash that ends the job, and ranks that srun tells nothing."""
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=20)
    set_step_secs(folder, 0.05)
    (folder / "launch.sh").write_text(LAUNCH)
    env = {**job_environment(slurm_cluster, anew=True), **ONE_MACHINE, "PYTHONUNBUFFERED": "1"}
    words = ["--nodes=2", "--ntasks-per-node=1", f"--output={folder}/job.out", "launch.sh"]
    job = slurm_cluster.sbatch(words, cwd=folder, env=env)
    job_dir = folder / "runs/tiny"

    def printed(turn: str) -> str:
        path = folder / f"{turn}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_start(count: int) -> None:
        wait_for(lambda: job_dir.exists() and len(starts(job_dir)) == count, lambda: f"start {count}\n{log(folder)}")
        newest = status(job_dir)["step"]
        wait_for(lambda: status(job_dir)["step"] > newest, "steps")

    def interrupt(turn: str) -> None:
        os.kill(int((folder / f"{turn}.pid").read_text()), signal.SIGINT)

    def code(turn: str) -> int:
        wait_for((folder / f"{turn}.code").exists, lambda: f"the end of {turn}\n{printed(turn)}")
        return int((folder / f"{turn}.code").read_text())

    wait_for_checkpoint(job_dir)
    ranks_of(job)[1].send_signal(signal.SIGKILL)
    wait_for_start(2)
    says = "hpc-train: rank 1 on n2 was killed by SIGKILL; restart 1 of 1 at once, from step "
    assert says in printed("crash"), printed("crash")
    interrupt("crash")
    assert code("crash") == 5 and "Ctrl-C: the ranks save and stop" in printed("crash"), printed("crash")
    stopped = status(job_dir)["step"]
    assert status(job_dir)["state"] == "stopped" and (job_dir / f"checkpoints/step-{stopped:08d}").is_dir()

    wait_for_start(3)
    (folder / "step_secs").write_text("1000")
    interrupt("twice")
    wait_for(lambda: "Ctrl-C" in printed("twice"), "that the first is heard")
    interrupt("twice")
    assert code("twice") == 130 and "interrupted twice: ended at once" in printed("twice"), printed("twice")
    set_step_secs(folder, 0.05)

    wait_for_start(4)
    ranks_of(job)[1].send_signal(signal.SIGKILL)
    assert code("killed") == 137 and "hpc-train: rank 1 on n2 was killed by SIGKILL\n" in printed("killed")
    error = status(job_dir)["error"]
    assert (error["rank"], error["signal"]) == (1, "SIGKILL"), error

    assert code("unknown") == 2, printed("unknown")
    assert "srun --mpi=list" in printed("unknown") and "direct launched" not in printed("unknown")
    for turn in ("crash", "twice", "killed", "unknown"):
        said = [line for line in printed(turn).splitlines() if not BUSY.match(line)]
        assert not [line for line in said if "srun:" in line or "slurmstepd" in line or "MPI_ABORT" in line], said
    assert ended_as(end(slurm_cluster, job)) == ("COMPLETED", 0, 0), log(folder)

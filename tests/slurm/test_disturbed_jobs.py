"""Jobs with min_nodes on four nodes that are killed, drained, stopped and slowed at random; and twenty lost nodes.

For `make soak` alone: the first for ten minutes (DISTURBED_SECS=600); test_lost_nodes.py has one of each stroke.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.slurm.cluster import FINISHED, SlurmCluster, missing_requirements
from tests.slurm.jobs import (
    ended_as,
    log,
    make_folder,
    newest_step,
    not_here,
    set_step_secs,
    starts,
    status,
    write_job,
)
from tests.slurm.strokes import drain_node, slow_node, stop_node
from tests.slurm.test_lost_nodes import MAX_STEPS, SAVE_STEPS, Job, assert_same_weights, boot, train
from tests.support import SOAK, records_of, wait_for

WATCHED_SECS = 8.0
SECS = float(os.environ.get("DISTURBED_SECS", 600))
TRIES = int(os.environ.get("LOST_NODES", 20))
ALL_NODES = "n1,n2,n3,n4"
KINDS: dict[str, dict[str, Any]] = {"sync": {}, "async": {"strategy": "async"}, "dedicated": {"chief": "dedicated"}}
AGAIN_SECS = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with SlurmCluster(cpus_per_node=8, slurmd_timeout_secs=15, nodes=4) as found:
        yield found


class Strokes:
    """What befalls a job, by name. Each returns whether there was something to strike."""

    def __init__(self, cluster: SlurmCluster, job: Job, chance: random.Random) -> None:
        self._cluster, self._job, self._chance = cluster, job, chance
        self.kinds: dict[str, Callable[[], bool]] = {
            "node killed": self._kill_node,
            "node drained": lambda: self._at(drain_node, lambda: self._kill("hpc-train")),
            "node stopped": lambda: self._at(stop_node),
            "node slowed": lambda: self._at(slow_node),
            "rank killed": lambda: self._kill("hpc-train"),
            "orted killed": lambda: self._kill("orted"),
        }

    def _node(self) -> str:
        return self._chance.choice(self._cluster.nodes)

    def _at(self, stroke: Callable[..., None], *more: Callable[[], object]) -> bool:
        stroke(self._cluster, self._node(), *more)
        return True

    def _kill_node(self) -> bool:
        node = self._node()
        self._cluster.kill_node(node)
        time.sleep(self._chance.choice([0, 20]))
        boot(self._cluster, node)
        return True

    def _kill(self, name: str) -> bool:
        found = []
        for pid in self._cluster.processes_of(self._node()):
            with suppress(psutil.NoSuchProcess):
                if any(name in word for word in psutil.Process(pid).cmdline()[:3]):
                    found.append(pid)
        for pid in self._chance.sample(found, min(1, len(found))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)


def disturb(cluster: SlurmCluster, job: Job, chance: random.Random, end: float, tally: Counter[str]) -> None:
    """Strikes until `end`, each time once the job has saved anew, and lets it finish then."""
    strokes, before = Strokes(cluster, job, chance), -1
    while time.monotonic() < end and cluster.show(job.number).state not in FINISHED:
        if newest_step(job.job_dir) > before:
            before = newest_step(job.job_dir)
            name = chance.choice(list(strokes.kinds))
            tally[name] += strokes.kinds[name]()
        time.sleep(chance.uniform(0.2, 2.0))
    set_step_secs(job.folder, 0)


def undisturbed(folder: Path, *runs: tuple[int, int]) -> Path:
    """The job-dir of runs on so many ranks up to a step each, which nothing befell."""
    make_folder(folder)
    for ranks, steps in runs:
        write_job(folder, steps, SAVE_STEPS)
        train(folder, ranks)
    return folder / "runs/tiny"


def is_watched_from(cluster: SlurmCluster, node: str) -> bool:
    """Whether a step on `node` looks after a batch node, and has done so for long enough to stay.

    What cancels a step that is on a dead node is sent to that node when it is back, a few seconds late: Slurm 22.05 has
    it end the step of that number of the job's next run. Started again, the step has another number.
    """
    for pid in cluster.processes_of(node):
        with suppress(OSError, psutil.NoSuchProcess):
            if b"\0job=$1 node=$2 " in Path(f"/proc/{pid}/cmdline").read_bytes():
                return time.time() - psutil.Process(pid).create_time() > WATCHED_SECS
    return False


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="takes ten minutes")
def test_disturbed_jobs_do_all_their_steps(
    cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, tally, number, end = random.Random(0), Counter[str](), 0, time.monotonic() + SECS
    while time.monotonic() < end:
        kind = list(KINDS)[number % len(KINDS)]
        env = {"HPC_TRAIN_MIN_NODES": "2", "HPC_TRAIN_SPARE_NODES": "1"}
        job = Job(cluster, tmp_path / f"{kind} {number}", ALL_NODES, run=KINDS[kind], **env)
        disturb(cluster, job, chance, end, tally)
        assert ended_as(cluster.wait(job.number))[:2] == ("COMPLETED", 0), log(job.folder)
        assert (status(job.job_dir)["state"], status(job.job_dir)["step"]) == ("succeeded", MAX_STEPS)
        sizes = {record["ranks"] for record in records_of(job.job_dir, "start")}
        if kind == "sync" and len(sizes) == 1:
            reference = undisturbed(tmp_path / f"undisturbed {number}", (sizes.pop(), MAX_STEPS))
            assert_same_weights(job.job_dir, reference, MAX_STEPS)
            tally["equal to the bit"] += 1
        tally[f"{kind} jobs"] += 1
        tally["starts"] += len(starts(job.job_dir))
        number += 1
    with capsys.disabled():
        print(f"\n{dict(tally)}", flush=True)


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="a late cancel of Slurm can make it fail")
def test_a_lost_batch_node(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A step on another node has the job requeued."""
    job = Job(cluster, tmp_path / "on two", "n1,n2", HPC_TRAIN_MIN_NODES="2")
    job.be_in_mid_step()
    wait_for(lambda: is_watched_from(cluster, "n2"), "a step that looks after the batch node")
    cluster.kill_node("n1")
    wait_for(lambda: cluster.show(job.number).restarts == 1, lambda: f"a requeue: {cluster.fields(job.number)}")
    set_step_secs(job.folder, 0)
    boot(cluster, "n1")
    assert ended_as(cluster.wait(job.number)) == ("COMPLETED", 0, 1), log(job.folder)
    assert_same_weights(job.job_dir, undisturbed(tmp_path / "undisturbed", (2, MAX_STEPS)), MAX_STEPS)


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="takes ten minutes")
def test_twenty_lost_nodes(cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs at once, each on two nodes of two ranks; one node of each dies in mid-step."""
    for number in range(0, TRIES, 2):
        pairs = [("n1", "n2"), ("n3", "n4")][: TRIES - number]
        min_nodes = {"HPC_TRAIN_MIN_NODES": "1"}
        names = [tmp_path / f"{number} {pair[0]}" for pair in pairs]
        jobs = [Job(cluster, name, ",".join(pair), 2, **min_nodes) for name, pair in zip(names, pairs, strict=True)]
        for job in jobs:
            job.be_in_mid_step()
        struck = {}
        for job, (_, dies) in zip(jobs, pairs, strict=True):
            struck[job.number] = time.time(), status(job.job_dir)["step"]
            cluster.kill_node(dies)
        for job in jobs:
            job.has_started(2, 0)
            (when, reached), again_at = struck[job.number], records_of(job.job_dir, "start")[1]
            secs, went_on = again_at["time"] - when, again_at["step"]
            again = max(0, reached - went_on)
            with capsys.disabled():
                print(f"\n{job.folder.name}: goes on {secs:.1f} s after the node died, {again} steps again")
            assert secs < AGAIN_SECS + cluster.slurmd_timeout_secs
            assert again <= SAVE_STEPS
        for job, (_, died) in zip(jobs, pairs, strict=True):
            assert ended_as(cluster.wait(job.number)) == ("COMPLETED", 0, 0), log(job.folder)
            went_on = starts(job.job_dir)[1]
            reference = undisturbed(
                job.folder.with_name(f"{job.folder.name} undisturbed"), (4, went_on), (2, MAX_STEPS)
            )
            assert_same_weights(job.job_dir, reference, MAX_STEPS)
            boot(cluster, died)
        wait_for(lambda: cluster.run(["squeue", "-h"]) == "", "an empty queue")

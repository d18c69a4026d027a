"""Studies in a Slurm job of two nodes, whose steps, script, nodes and processes are killed at random moments.

Nodes are drained, stopped and slowed, too.
For ten minutes (DISTURBED_SECS=600), under `make soak` alone; test_tune_sh.py has a requeue and a node that dies.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from hpc_train.tuning.search.folder import StudyFolder
from tests.disturbance import SHAPES, Place, Tally, disturb_studies, drivers_of, launchers_of, ranks_of
from tests.slurm.cluster import FINISHED, SlurmCluster
from tests.slurm.jobs import job_environment
from tests.slurm.strokes import drain_node, slow_node, stop_node
from tests.support import REPOSITORY, SOAK, wait_for

SECS = float(os.environ.get("DISTURBED_SECS", 600))
TUNE_SH = str(REPOSITORY / "slurm/tune.sh")


class Allocated(Place):
    """slurm/tune.sh in a job of two nodes, which is submitted again where Slurm does not start it again."""

    crashes = frozenset(["rank killed", "mpirun killed", "step killed", "step cancelled", "node lost"])
    begin_secs, poll_secs = 4.0, 0.5  # one that goes back into the queue waits there for eleven seconds

    def __init__(self, folder: Path, name: str, slots: int, chance: random.Random, cluster: SlurmCluster) -> None:
        self.study = StudyFolder(folder / "runs" / name)
        self._folder, self._slots, self._chance, self._cluster = folder, slots, chance, cluster
        self._log, self._job = folder / f"{name}.log", 0
        path = self.study.path
        self.kinds: Mapping[str, Callable[[], bool]] = {
            "job cancelled": lambda: self._running() and self._told("scancel", str(self._job)),
            "job requeued": lambda: self._running() and self._told("scontrol", "requeue", str(self._job)),
            "job warned": lambda: self._running() and self._told("scancel", "--batch", "--signal=USR1", str(self._job)),
            "script killed": lambda: (
                self._running() and self._told("scancel", "--batch", "--signal=KILL", str(self._job))
            ),
            "step killed": lambda: self._step("--signal=KILL"),
            "step cancelled": lambda: self._step(),
            "node lost": self._lose_node,
            "node drained": lambda: self._at_node(drain_node),
            "node stopped": lambda: self._at_node(stop_node),
            "node slowed": lambda: self._at_node(slow_node),
            "driver killed": lambda: self._one_of(drivers_of(path)),
            "mpirun killed": lambda: self._one_of(launchers_of(path)),
            "rank killed": lambda: self._one_of(ranks_of(path)),
        }

    def _running(self) -> bool:
        return self._cluster.show(self._job).state == "RUNNING"

    def _told(self, *command: str) -> bool:
        """Whether Slurm did what it was asked for; the job may have ended just now."""
        try:
            self._cluster.run(command)
        except RuntimeError:
            return False
        return True

    def _step(self, *options: str) -> bool:
        asked = ["squeue", "--steps", f"--jobs={self._job}", "--noheader", "--format=%i"]
        steps = [step for step in self._cluster.run(asked).split() if step.rpartition(".")[2].isdecimal()]
        return bool(steps) and self._told("scancel", *options, self._chance.choice(steps))

    def _lose_node(self) -> bool:
        if not self._running():
            return False
        node = self._chance.choice(self._cluster.nodes)
        self._cluster.kill_node(node)
        self._cluster.start_node(node)
        return True

    def _at_node(self, stroke: Callable[[SlurmCluster, str], None]) -> bool:
        if not self._running():
            return False
        stroke(self._cluster, self._chance.choice(self._cluster.nodes))
        return True

    def _one_of(self, found: list[psutil.Process]) -> bool:
        if not found:
            return False
        self._chance.choice(found).send_signal(signal.SIGKILL)
        return True

    def go_on(self, tally: Tally) -> bool:
        now = self._cluster.show(self._job) if self._job else None
        if now is not None and now.state not in FINISHED:
            return True
        if now is not None:
            tally.starts += now.restarts
            if (now.state, now.exit_code) == ("COMPLETED", 0):
                return False
            said = self._log.read_text()
            assert now.exit_code != 2, said
            assert "Traceback" not in said, said
        tally.starts += 1
        size = ["--nodes=2", "--ntasks-per-node=2", f"--output={self._log}"]
        words = ["job.yaml", "--study", str(self.study.path), "--parallel", str(self._slots)]
        environment = job_environment(self._cluster, anew=True)
        self._job = self._cluster.sbatch([*size, TUNE_SH, *words], self._folder, environment)
        return True

    def end(self) -> None:
        self._told("scancel", str(self._job))
        wait_for(lambda: self._cluster.show(self._job).state in FINISHED, "the end of the job")


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="takes ten minutes")
def test_studies_that_are_killed_at_random_moments_are_those_that_nobody_has_disturbed(
    slurm_cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", flush=True)

    make = lambda *words: Allocated(*words, slurm_cluster)
    tally = disturb_studies(tmp_path, list(SHAPES), make, 0, SECS, report)
    assert tally.kills.total() > 0

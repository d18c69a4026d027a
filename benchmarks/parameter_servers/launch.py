"""Starts ranks: on this machine, over shared memory or TCP, or on the two nodes of a private Slurm."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm.cluster import SlurmCluster

REPOSITORY = Path(__file__).resolve().parents[2]
TCP: Mapping[str, str] = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_osc": "pt2pt", "HPC_TRAIN_SHARED_WINDOW": "0"}
"""Ranks of one host do not share memory."""
NO_CMA: Mapping[str, str] = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
"""A message between two ranks of a node is copied twice, through memory that they share, as in many containers. Else
one of them copies it out of the other's memory, by the kernel's cross memory attach."""
NOT_PASSED_ON = ("HOROVOD_", "OMPI_MCA_", "OMPI_COMM_", "SLURM_", "PMIX_", "HPC_TRAIN_", "TF_NUM_")
"""What the caller may have set and would change what is measured."""

Launch = Callable[[int, Sequence[str], Path, float], None]
"""Runs so many ranks of `python ARGUMENTS` in a folder, for so many seconds at most."""


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """For ranks: one thread each, this checkout, and none of the settings that change what is measured."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {
        "PATH": path,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "benchmarks")]),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    return {**kept, **own, **(more or {})}


class Ranks:
    """Ranks that run on this machine. A context manager: leaving it ends them.

    Args:
        arguments: Of Python. env: beside `environment()`.

    Raises:
        RuntimeError: From `wait`: they failed, or took longer than they may; with what they printed last.
    """

    def __init__(
        self, ranks: int, arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        self._command, self._log = [*launcher, sys.executable, *arguments], folder / "ranks.log"
        self._environment, self._folder = environment(env), folder

    def __enter__(self) -> Ranks:
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # mpirun ends its ranks
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, limit_secs: float) -> None:
        try:
            code = self._process.wait(limit_secs)
        except subprocess.TimeoutExpired:
            raise self._failure(f"still running after {limit_secs:.0f} s") from None
        if code != 0:
            raise self._failure(f"code {code}")

    def _failure(self, what: str) -> RuntimeError:
        lines = self._log.read_text(errors="replace").splitlines()[-25:]
        return RuntimeError("\n".join([f"{shlex.join(self._command)}: {what}", *lines]))


def here(env: Mapping[str, str] | None = None) -> Launch:
    """Launches on this machine, with `env` beside `environment()`."""

    def launch(ranks: int, arguments: Sequence[str], folder: Path, limit_secs: float) -> None:
        with Ranks(ranks, arguments, folder, env) as started:
            started.wait(limit_secs)

    return launch


def slurm_missing() -> str | None:
    """Why no private Slurm can be started here, as one sentence, or None."""
    _find_tests()
    try:
        from tests.slurm.cluster import missing_requirements
    except ImportError:
        return "tests/slurm/cluster.py is not there"
    return missing_requirements()


def two_nodes(cluster: SlurmCluster) -> Launch:
    """Launches on the two nodes of `cluster`: the last rank on one, the others on the other. They talk over TCP."""

    def launch(ranks: int, arguments: Sequence[str], folder: Path, limit_secs: float) -> None:
        program = shlex.join(["mpirun", "--map-by", "slot", "-np", str(ranks), sys.executable, *arguments])
        script = folder / "job.sh"
        script.write_text(f"#!/bin/bash\nunset SRUN_CPUS_PER_TASK\nexport SLURM_EXPORT_ENV=ALL\nexec {program}\n")
        places = ["--nodes=2", f"--ntasks-per-node={ranks - 1}", "--output=job.out"]
        env = environment({"OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_hwloc_base_binding_policy": "none"})
        own = {name: value for name, value in env.items() if cluster.env.get(name) != value and name != "TMPDIR"}
        own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), cluster.env["PATH"]])
        job = cluster.sbatch([*places, str(script)], folder, own)
        state = cluster.wait(job, limit_secs).state
        if state != "COMPLETED":
            lines = (folder / "job.out").read_text(errors="replace").splitlines()[-25:]
            raise RuntimeError("\n".join([f"{program}: {state}", *lines]))

    return launch


def make_cluster() -> SlurmCluster:
    """A private Slurm of two nodes, to be entered."""
    _find_tests()
    from tests.slurm.cluster import SlurmCluster

    return SlurmCluster(cpus_per_node=2)


def _find_tests() -> None:
    if str(REPOSITORY) not in sys.path:
        sys.path.append(str(REPOSITORY))


def process_secs(pid: int) -> float:
    """CPU seconds that a process and its threads have taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mpi_version() -> str:
    """What mpirun says that it is, in a line."""
    done = subprocess.run(["mpirun", "--version"], env=environment(), capture_output=True, text=True, timeout=20)
    return (done.stdout or done.stderr).partition("\n")[0]

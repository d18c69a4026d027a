"""Starts ranks: on this machine, in an allocation of Slurm, or on the two nodes of a private Slurm."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from support.usage import UsageError

if TYPE_CHECKING:
    from tests.slurm.cluster import SlurmCluster

REPOSITORY = Path(__file__).resolve().parents[2]
TCP: Mapping[str, str] = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_osc": "pt2pt", "HPC_TRAIN_SHARED_WINDOW": "0"}
"""Ranks of one host do not share memory."""
NO_CMA: Mapping[str, str] = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
"""A message between two ranks of a node is copied twice, through memory that they share, as in many containers. Else
one of them copies it out of the other's memory, by the kernel's cross memory attach."""
NOT_PASSED_ON = ("HOROVOD_", "OMPI_COMM_", "PMIX_", "HPC_TRAIN_", "TF_NUM_", "SRUN_CPUS_PER_TASK")
"""What the caller may have set and would change what is measured, or comes from an mpirun above this one."""
LEAVE_SECS = 20.0
"""After SIGTERM; then follows SIGKILL."""
LOG_LINES = 25
"""Shown of what has failed."""
NOT_WITHOUT_ALLOCATION = ("SLURM_", "OMPI_MCA_")
SESSION_VARIABLE = "OMPI_MCA_orte_tmpdir_base"
"""Where Open MPI 4 keeps what an mpirun needs while it runs. In the folder that all those of a user share by default,
one that starts just when another ends can fail: the other takes the empty folder away. Not orte_local_tmpdir_base:
ranks get orte_tmpdir_base from mpirun, and refuse both."""
NEVER_PASSED_ON = (
    *(SESSION_VARIABLE, "OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base"),
    "OMPI_MCA_mpi_yield_when_idle",
)

Launch = Callable[[int, Sequence[str], Path, float], None]
"""Runs so many ranks of `python ARGUMENTS` in a folder, for so many seconds at most."""


def environment(more: Mapping[str, str] | None = None, allocation: bool = False) -> dict[str, str]:
    """For ranks: one thread each, this checkout, and none of the settings that change what is measured.

    Args:
        more: Beside these. allocation: Ranks may run wherever Slurm gave this job nodes, and on its GPUs; what the site
            set for Open MPI stays. Otherwise they run on this machine, and see no GPU.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {
        "PATH": path,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "benchmarks")]),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_BACKEND": "tensorflow",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if not allocation:
        own["CUDA_VISIBLE_DEVICES"] = "-1"
    elif "SLURM_JOB_ID" in os.environ:
        own["SLURM_EXPORT_ENV"] = "ALL"
    dropped = NOT_PASSED_ON if allocation else NOT_PASSED_ON + NOT_WITHOUT_ALLOCATION
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(dropped) and name not in NEVER_PASSED_ON
    }
    return {**kept, **own, **(more or {})}


def nodes() -> int:
    """Of this Slurm job; 1 outside one."""
    told = os.environ.get("SLURM_JOB_NUM_NODES", "")
    return max(1, int(told)) if told.isdecimal() else 1


def slots(one_node: bool = False) -> int:
    """Ranks that have a core, or what Slurm counts as one, to themselves.

    SLURM_NTASKS; where sbatch was told no number of tasks, the CPUs of all nodes of the job; else the usable cores.
    one_node: on this node alone; the cores that this process may use, and no more than the tasks that are here.
    """
    here, told = len(os.sched_getaffinity(0)), os.environ.get("SLURM_NTASKS", "")
    tasks = int(told) if told.isdecimal() else 0
    if one_node:
        on_first = tasks_on_first_node() or -(-tasks // nodes())
        return min(here, on_first) if tasks else here
    if tasks > 0:
        return tasks
    if nodes() > 1:
        cpus = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))  # 64(x2),32
        return sum(int(count) * int(times or 1) for count, times in cpus) or nodes()
    return here


def powers_up_to(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def tasks_on_first_node() -> int:
    """Of a Slurm job of several nodes, on the one which runs its script; 0 where Slurm does not tell."""
    told = (os.environ.get(name, "") for name in ("SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"))  # 4(x2),3
    found = [re.match(r"\d+", text) for text in told] if nodes() > 1 else []
    return next((int(match[0]) for match in found if match), 0)


def working_parent(asked: Path | None, results: Path) -> Path | None:
    """In which folder the files of ranks are kept while they run; None: where temporary files go.

    The folder asked for. In a job of several nodes, each of which has temporary files of its own, that of `results`,
    the results folder: whatever was written into that is seen by all of them.
    """
    if asked is not None:
        return asked.resolve()
    return results.resolve().parent if nodes() > 1 else None


def check_mpirun() -> None:
    """Sees that there is an mpirun.

    Raises:
        UsageError: There is none on PATH.
    """
    if shutil.which("mpirun", path=environment()["PATH"]) is None:
        raise UsageError("there is no mpirun on PATH: load the cluster's Open MPI, or use the .venv of 'make setup'")


def check_ranks(ranks: Sequence[int], oversubscribe: bool, one_node: bool = False) -> None:
    """Sees that there is a slot for each of `ranks` ranks; `one_node`: on this node, where `here()` starts them all.

    Raises:
        UsageError: There are more ranks than slots and no `oversubscribe`; or fewer than one.
    """
    if not ranks or min(ranks) < 1:
        raise UsageError(f"--ranks: {', '.join(map(str, ranks)) or 'none'}: give numbers from 1 on")
    there, most = slots(one_node), max(ranks)
    if most > there and not oversubscribe:
        of, more = "cores that this process may use", ""
        if one_node and "SLURM_JOB_ID" in os.environ:
            of, more = "cores and tasks of this Slurm job on this node", "; sbatch gives more by --ntasks-per-node"
        elif "SLURM_JOB_ID" in os.environ:
            of, more = "tasks, or CPUs, of this Slurm job", "; sbatch gives more by --ntasks-per-node and --nodes"
        raise UsageError(
            f"{most} ranks but {there} slots ({of}); --oversubscribe lets several ranks share one, at the cost of the "
            f"figures; otherwise at most {there}{more}"
        )


class Started:
    """A program in a session of its own. A context manager: leaving it ends the program, and what that has started.

    Args:
        name: What errors call it. log: A file for what it prints.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path) -> None:
        self._name, self._command, self._folder, self._env, self.log = name, command, folder, env, log

    def __enter__(self) -> Started:
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self._process.terminate()  # mpirun ends its ranks
            try:
                self._process.wait(LEAVE_SECS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, limit_secs: float) -> None:
        """Waits for its end.

        Raises:
            RuntimeError: It failed, or took longer than it may; with what it printed last.
        """
        try:
            code = self._process.wait(limit_secs)
        except subprocess.TimeoutExpired:
            raise self.failure(f"still running after {limit_secs:.0f} s") from None
        if code != 0:
            raise self.failure(f"code {code}")

    def failure(self, what: str) -> RuntimeError:
        """An error that says so, and what was printed last."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return RuntimeError("\n".join([f"{self._name}: {what}", *lines]))


class Ranks(Started):
    """Ranks under mpirun; what they print is in `folder`.

    Args:
        arguments: Of Python. env: beside `environment()`. allocation: as there. options: more of mpirun's;
            ranks are bound to cores only where they say so. prefix: a program and words of its own, before mpirun.
    """

    def __init__(
        self,
        ranks: int,
        arguments: Sequence[str],
        folder: Path,
        env: Mapping[str, str] | None = None,
        allocation: bool = False,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        bound = () if "--bind-to" in options else ("--bind-to", "none")
        command = [
            *prefix,
            "mpirun",
            "--oversubscribe",
            *bound,
            *options,
            "-np",
            str(ranks),
            sys.executable,
            *arguments,
        ]
        super().__init__(shlex.join(command), command, folder, environment(env, allocation), folder / "ranks.log")
        self._many_nodes = allocation and nodes() > 1
        self._open = ExitStack()

    def __enter__(self) -> Started:
        if not self._many_nodes:  # on other nodes the folder would be made, and left behind
            session = tempfile.TemporaryDirectory(prefix="ompi-", ignore_cleanup_errors=True)
            self._env = {**self._env, SESSION_VARIABLE: self._open.enter_context(session)}
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        with self._open:
            super().__exit__(*error)


def here(env: Mapping[str, str] | None = None, allocation: bool = False, options: Sequence[str] = ()) -> Launch:
    """Launches on this machine, or in this job's allocation, with `env` beside `environment()`."""

    def launch(ranks: int, arguments: Sequence[str], folder: Path, limit_secs: float) -> None:
        with Ranks(ranks, arguments, folder, env, allocation, options) as started:
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

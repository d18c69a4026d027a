"""What this machine lacks for jobs, found out by trying: the checks of `hpc-train doctor`, and their order."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hpc_train.doctor import files, machine, mpi, packages, site
from hpc_train.doctor.slurm import SlurmProbe
from hpc_train.doctor.tools import Finding, Outcome, Tool, Tools, marked
from hpc_train.jobs.launch.launchers.mpirun import mpirun_command
from hpc_train.telemetry.energy.counter import NotMeasuredError
from hpc_train.telemetry.energy.node import node_counters

IMPORT_SECS, RANKS_SECS, ONE_SIDED_SECS = 120.0, 90.0, 60.0
"""Limits: an import takes 4 s, and a minute from a cold file system of a cluster; the ranks take 7 s and 2 s."""
TOOL_SECS, FILES_SECS = 10.0, 60.0
SHARED_FOLDER = Path("/dev/shm")
INFINIBAND_FOLDER = Path("/sys/class/infiniband")
DRIVER_FILE = Path("/proc/driver/nvidia/version")

ReportLine = Callable[[str], None]


def examine(job_dir: Path, report: ReportLine) -> Iterator[Finding]:
    """Makes all checks, in the order in which they are reported; some 15 s.

    Each tool has a time limit, and what goes wrong in a check is its finding. Leaves nothing in `job_dir`.

    Args:
        report: Called with what is being looked at.
    """
    with Tools() as tools:
        checks = _Checks(tools, job_dir)
        steps: tuple[tuple[str, str, Callable[[], Iterable[Finding]]], ...] = (
            ("Python", "Python", lambda: [packages.this_python()]),
            ("TensorFlow", "TensorFlow and Horovod (a few seconds)", checks.packages),
            ("MPI", "MPI", checks.mpi),
            ("two ranks", "two ranks (a few seconds)", checks.ranks),
            ("shared memory", "shared memory", checks.shared_memory),
            ("GPUs", "GPUs", checks.gpus),
            ("energy", "energy", checks.energy),
            ("Slurm", "Slurm", checks.slurm.findings),
            ("site", "the site file", lambda: [site.site_finding(os.environ)]),
            ("job-dir", "the file system of the job-dir", checks.files),
            ("limits", "limits", checks.limits),
        )
        for name, doing, step in steps:
            report(doing)
            try:
                yield from step()
            except Exception as error:
                found = f"the check itself failed: {type(error).__name__}: {error}"
                needed = name not in ("shared memory", "GPUs", "energy", "Slurm", "site", "limits")
                yield Finding(name, "fails", found, "tell those who maintain hpc_train", needed)


def demo_runs(findings: Iterable[Finding]) -> bool:
    """Whether `make demo` could run, as far as these findings show. Pure."""
    return not any(finding.needed and finding.result == "fails" for finding in findings)


class _Checks:
    """The checks, and what one found that another needs. All that takes no core is started at once."""

    def __init__(self, tools: Tools, job_dir: Path) -> None:
        self._tools, self._job_dir = tools, job_dir
        self._mpirun = shutil.which(
            "mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        )
        self._version = tools.start([self._mpirun, "--version"], TOOL_SECS) if self._mpirun else None
        self._mpi = tools.start(mpi.MPI_COMMAND, IMPORT_SECS, name="the import of mpi4py")
        self._nvidia = tools.start(machine.GPU_COMMAND, TOOL_SECS)
        self.slurm = SlurmProbe(tools)
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        self._imports = tools.start(packages.IMPORTS_COMMAND, IMPORT_SECS, quiet, "the import of TensorFlow")
        self._gpus, self._nccl = 0, 0
        self._one_sided: Tool | None = None
        self._ready = False
        self._allreduce: Outcome | None = None
        self._results: dict[str, Any] = {}

    def packages(self) -> Iterator[Finding]:
        # Meanwhile: its ranks hardly compute, and the imports need one core.
        self._one_sided = self._start("one-sided", ONE_SIDED_SECS) if self._mpi.outcome().failure is None else None
        self._gpus = len(machine.parse_gpus(self._nvidia.outcome().out))
        outcome = self._imports.outcome()
        results = marked(outcome.out)
        self._nccl = int(results.get("nccl", 0))
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None
        tensorflow = packages.tensorflow_finding(outcome, results, self._gpus, hidden)
        horovod = packages.horovod_finding(outcome, results, self._gpus)
        self._ready = "fails" not in (tensorflow.result, horovod.result)
        yield tensorflow
        yield horovod

    def mpi(self) -> Iterator[Finding]:
        outcome = self._mpi.outcome()
        results = marked(outcome.out)
        yield mpi.mpi_finding(outcome, results)
        version = self._version.outcome() if self._version else None
        yield mpi.mpirun_finding(self._mpirun, version, results.get("library", ""))

    def ranks(self) -> Iterator[Finding]:
        one_sided = self._one_sided.outcome() if self._one_sided else None
        allreduce = self._start("allreduce", RANKS_SECS) if self._ready else None
        self._allreduce = allreduce.outcome() if allreduce else None
        self._results = marked(self._allreduce.out) if self._allreduce else {}
        in_step = "SLURM_STEP_ID" in os.environ
        yield mpi.allreduce_finding(self._allreduce, self._results, in_step)
        yield mpi.one_sided_finding(one_sided, marked(one_sided.out) if one_sided else {}, in_step)

    def _start(self, part: str, limit_secs: float) -> Tool | None:
        """`part` of ranks.py on two ranks, as `hpc-train launch` starts them; None where there is no mpirun."""
        version = self._version.outcome() if self._version else None
        if self._mpirun is None or version is None or version.failure:
            return None
        program = [sys.executable, "-m", "hpc_train.doctor.ranks", part]
        command, settings = mpirun_command(self._mpirun, version.out, 2, program, os.geteuid() == 0, os.environ)
        return self._tools.start(command, limit_secs, {**os.environ, **settings})

    def shared_memory(self) -> Iterator[Finding]:
        space = os.statvfs(SHARED_FOLDER) if SHARED_FOLDER.is_dir() else None
        yield machine.shared_memory_finding(None if space is None else space.f_bavail * space.f_frsize)

    def gpus(self) -> Iterator[Finding]:
        yield machine.gpu_finding(self._nvidia.outcome(), DRIVER_FILE.exists())
        yield mpi.nccl_finding(self._gpus, self._nccl, self._results, self._allreduce)

    def energy(self) -> Iterator[Finding]:
        try:
            yield machine.energy_finding(node_counters())
        except NotMeasuredError as error:
            yield machine.energy_finding(str(error))

    def files(self) -> Iterator[Finding]:
        outcome = self._tools.start(files.command(self._job_dir), FILES_SECS, name="the check").outcome()
        yield from files.file_findings(outcome, marked(outcome.out))

    def limits(self) -> Iterator[Finding]:
        devices = sorted(path.name for path in INFINIBAND_FOLDER.iterdir()) if INFINIBAND_FOLDER.is_dir() else []
        locked, files = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE))
        yield machine.limits_finding(locked, files, devices)

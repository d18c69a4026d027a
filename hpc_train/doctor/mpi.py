"""What `hpc-train doctor` reports about MPI: mpi4py's library, mpirun, and messages between two ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from hpc_train.bootstrap.plan import OPENMPI, parse_mpi_version, usable_mpi
from hpc_train.doctor.packages import SET_UP, advice_for
from hpc_train.doctor.tools import MARK, Finding, Outcome
from hpc_train.telemetry.units import size

# MPI itself is not started: outside mpirun it may not be able to, as under srun.
_PROBE = f"""if True:
    import json
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    print("\\n{MARK}" + json.dumps({{"mpi4py": mpi4py.__version__, "library": MPI.Get_library_version()}}))
"""
MPI_COMMAND = [sys.executable, "-c", _PROBE]
"""The program that prints which MPI library mpi4py uses."""
_ANOTHER = (
    f"load a module of Open MPI 4 or MPICH and run `make setup`, or set HPC_TRAIN_MPI=wheel for Open MPI {OPENMPI}"
)
SAME_MPI = (
    "load the module of the MPI that mpi4py and Horovod were built with, or run `make setup` with the one on PATH"
)
_LIBRARIES = {
    "Open MPI": r"Open MPI v(\d[\w.]*)",
    "Intel MPI": r"Intel\(R\) MPI Library (\d[\w.]*)",
    "Cray MPICH": r"CRAY MPICH version (\d[\w.]*)",
    "MVAPICH": r"MVAPICH\d?[\w-]* Version\s*:\s*(\d[\w.]*)",
    "MPICH": r"MPICH Version\s*:\s*(\d[\w.]*)",
}
_HINTS = (
    (
        r"not enough slots|All nodes which are allocated for this job are already filled",
        "this Slurm job has too few tasks: ask for two (--ntasks=2), or run it outside of a job",
    ),
    (
        r"ssh : rsh",
        "Open MPI 4 starts no rank without ssh on PATH: install it (Debian: openssh-client)",
    ),
    (r"ssh|rsh agent|plm_rsh", "mpirun wants to reach another node: run it inside a Slurm job, or unset OMPI_MCA_plm"),
    (r"launcher started \d+ ranks", SAME_MPI),
    (r"/dev/shm|shmem|shared memory", "make /dev/shm larger (docker run --shm-size=2g)"),
    (
        r"MPI_INIT|(?i:unreachable)|PMIX ERROR",
        "unset what forces Open MPI's hand (env | grep OMPI_MCA), see that this machine's name resolves, then load "
        "another MPI, or set HPC_TRAIN_MPI=wheel and run `make setup`",
    ),
    (r"unable to find|could not access|help-opal|OPAL_PREFIX", f"the MPI was moved or is half-installed: {SET_UP}"),
    (
        r"did not end within",
        "a network interface that leads nowhere is the usual reason: name a good one, "
        "OMPI_MCA_btl_tcp_if_include=lo (or eth0, ib0), and run it again",
    ),
)


def parse_library(text: str) -> tuple[str, str]:
    """(vendor, version) of what MPI_Get_library_version returns; an unknown vendor is named by the first line. Pure."""
    for vendor, pattern in _LIBRARIES.items():
        if found := re.search(pattern, text):
            return vendor, found.group(1)
    return (text.strip("\0 \n").splitlines() or ["unknown"])[0][:60], ""


def mpi_finding(outcome: Outcome, results: Mapping[str, Any]) -> Finding:
    """Whether mpi4py can be imported, and its MPI is one that Horovod runs on. Pure.

    Args:
        outcome: Of MPI_COMMAND; results: what it has reported.
    """
    if "library" not in results:
        problem = outcome.failure or "its import ended without a word"
        return Finding("MPI", "fails", problem, advice_for(problem) or SET_UP, needed=True)
    vendor, version = parse_library(results["library"])
    found = f"{vendor} {version}".rstrip() + f", mpi4py {results['mpi4py']}"
    if usable_mpi(vendor, version):
        return Finding("MPI", "ok", found, needed=True)
    if vendor == "Open MPI" and int(version.split(".")[0]) > 4:
        advice = (
            "Horovod's horovodrun does not run on Open MPI 5, whose mpirun takes its single-dash options for the "
            f"program: {_ANOTHER}"
        )
        return Finding("MPI", "fails", found, advice, needed=True)
    if vendor == "Open MPI":
        return Finding("MPI", "fails", found, f"it is too old for Horovod: {_ANOTHER}", needed=True)
    advice = f"hpc_train was not tried with it: see whether two ranks run below; else {_ANOTHER}"
    return Finding("MPI", "warning", found, advice, needed=True)


def mpirun_finding(path: str | None, outcome: Outcome | None, library: str) -> Finding:
    """Whether there is an mpirun, and whether it starts the ranks of mpi4py's `library` (as above). Pure.

    Args:
        outcome: Of `mpirun --version`, None where there is no mpirun.
    """
    if path is None or outcome is None:
        advice = f"load an MPI module, or {SET_UP}, which brings one"
        return Finding("mpirun", "fails", "not on PATH, and not beside this Python", advice, needed=True)
    if outcome.failure:
        advice = advice_for(outcome.failure) or f"load its MPI module again, or {SET_UP}"
        return Finding("mpirun", "fails", f"{path}: {outcome.failure}", advice, needed=True)
    vendor, version = parse_mpi_version(outcome.out + outcome.err)
    found = f"{vendor} {version}".rstrip() + f", {path}"
    theirs, their_version = parse_library(library)
    # Cray MPICH and MVAPICH start their ranks with MPICH's mpirun.
    kin = vendor == "MPICH" and theirs in ("MVAPICH", "Cray MPICH")
    if theirs != vendor and not kin and library:
        found += f", but mpi4py uses {theirs}"
        return Finding("mpirun", "fails", found, f"each rank would think that it is alone: {SAME_MPI}", needed=True)
    if theirs == vendor and version.split(".")[:1] != their_version.split(".")[:1]:
        return Finding("mpirun", "fails", f"{found}, but mpi4py uses {their_version}", SAME_MPI, needed=True)
    if theirs == vendor and version.split(".")[:2] != their_version.split(".")[:2]:
        return Finding("mpirun", "warning", f"{found}, but mpi4py uses {their_version}", SAME_MPI, needed=True)
    return Finding("mpirun", "ok", found, needed=True)


def allreduce_finding(outcome: Outcome | None, results: Mapping[str, Any], in_step: bool) -> Finding:
    """Whether Horovod, or MPI where there is none, adds up over two ranks. Pure.

    Args:
        outcome: Of the two ranks, None where what they need is missing; results: what they have reported.
        in_step: Whether srun has started this, so that mpirun's own srun may wait for it to end.
    """
    if outcome is None:
        found = "not tried: TensorFlow, Horovod and mpirun have to work first"
        return Finding("two ranks", "fails", found, needed=True)
    if "allreduce_secs" not in results:
        problem = outcome.failure or "the ranks ended without a word"
        return Finding("two ranks", "fails", problem, _rank_advice(outcome, in_step), needed=True)
    if len(results.get("libraries", [])) > 1:
        found = f"Horovod and mpi4py use different MPI libraries: {' and '.join(results['libraries'])}"
        return Finding("two ranks", "fails", found, SET_UP, needed=True)
    hosts = results.get("hosts", 1)
    found = (
        f"an allreduce by {results.get('carrier', 'Horovod')} takes {duration(results['allreduce_secs'])}, "
        f"of {size(results['large_bytes'])} {duration(results['large_secs'])}"
    )
    if hosts > 1:
        found += f", between {hosts} nodes"
    if outcome.failure and "gpu_tried" not in results:
        advice = f"the ranks did their work and then ended badly, as jobs will: {_rank_advice(outcome, in_step)}"
        return Finding("two ranks", "fails", f"{found}; {outcome.failure}", advice, needed=True)
    return Finding("two ranks", "ok", found, needed=True)


def one_sided_finding(outcome: Outcome | None, results: Mapping[str, Any], in_step: bool) -> Finding:
    """Whether two ranks read and write each other's memory, as `strategy: async` needs it. Pure; as above."""
    if outcome is None:
        return Finding("one-sided", "fails", "not tried: MPI and mpirun have to work first")
    if outcome.failure or "put_secs" not in results:
        advice = _hint(outcome, in_step) or (
            "run.strategy: async will not run here, sync may: unset OMPI_MCA_osc and OMPI_MCA_btl, or load another MPI"
        )
        return Finding("one-sided", "fails", outcome.failure or "the ranks ended without a word", advice)
    where = "memory that ranks share" if results["shared"] else "windows without shared memory"
    found = (
        f"Put {duration(results['put_secs'])}, Get {duration(results['get_secs'])}, Fetch_and_op "
        f"{duration(results['add_secs'])} in {where}"
    )
    return Finding("one-sided", "ok", found)


def nccl_finding(gpus: int, nccl: int, results: Mapping[str, Any], outcome: Outcome | None) -> Finding:
    """Whether gradients of GPUs are summed by NCCL. Pure.

    Args:
        nccl: What hvd.nccl_built() returns: NCCL's version code, 0 without; results, outcome: of the two ranks.
    """
    if not gpus:
        return Finding("NCCL", "not here", "no GPU" + (f" ({nccl_version(nccl)} in Horovod)" if nccl else ""))
    if not nccl:
        advice = "gradients go through the host by MPI; see Horovod above for what to do"
        if results.get("takes_gpu_memory"):
            advice += ", or try run.allreduce: mpi-gpu: this MPI says that it takes the memory of GPUs"
        return Finding("NCCL", "warning", "Horovod was built without it", advice)
    found = f"{nccl_version(nccl)} in Horovod"
    if gpus == 1:
        advice = (
            "two ranks cannot share a GPU by NCCL: start one rank a GPU, or set CUDA_VISIBLE_DEVICES= (empty) to train "
            "on the CPU, also for `make demo`"
        )
        return Finding("NCCL", "warning", f"{found}; one GPU", advice)
    if "gpu_secs" in results:
        return Finding("NCCL", "ok", f"{found}; an allreduce between two GPUs takes {duration(results['gpu_secs'])}")
    if "gpu_tried" in results and outcome is not None:
        advice = "run `hpc-train doctor` with NCCL_DEBUG=INFO set, and see docs/slurm.md for NCCL's settings"
        problem = outcome.failure or "two ranks on two GPUs ended without a word"
        return Finding("NCCL", "fails", f"{found}; {problem}", advice, needed=True)
    return Finding("NCCL", "warning", f"{found}; not tried: the two ranks had no GPU each")


def nccl_version(code: int) -> str:
    """2.23.4 from NCCL_VERSION_CODE 22304; before 2.9 it had a digit less. Pure."""
    scale = 10000 if code >= 10000 else 1000
    return f"{code // scale}.{code % scale // 100}.{code % 100}"


def duration(secs: float) -> str:
    """Seconds for people."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if secs >= scale:
            return f"{secs / scale:.3g} {unit}"
    return f"{secs * 1e9:.0f} ns"


def _hint(outcome: Outcome, in_step: bool) -> str | None:
    if in_step and outcome.code is None:
        return "mpirun waits here for the srun that started this: set SLURM_OVERLAP=1, or use salloc or sbatch"
    text = f"{outcome.failure}\n{outcome.err}"
    return next((advice for pattern, advice in _HINTS if re.search(pattern, text)), None)


def _rank_advice(outcome: Outcome, in_step: bool) -> str:
    known = _hint(outcome, in_step) or advice_for(f"{outcome.failure}\n{outcome.err}")
    return known or f"see that MPI, Horovod and TensorFlow above are ok, or {SET_UP} again"

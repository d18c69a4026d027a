"""What a result depends on: processor, memory, versions, thread settings. Nothing that names the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from support.launch import environment

THREAD_SETTINGS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "CUDA_VISIBLE_DEVICES")


def describe() -> dict[str, str | int]:
    """Processor, usable cores, last-level cache, memory and kernel; GPUs, and Slurm nodes where there are several."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found: dict[str, str | int] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }
    if (nodes := os.environ.get("SLURM_JOB_NUM_NODES", "1")) != "1":
        found["nodes"] = int(nodes)
    names = [f"{gpu['name']}, {gpu['memory_mib']} MiB" for gpu in gpus()]
    if names:
        found["gpus"] = "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    if caches:
        found["last_level_cache"] = caches[-1].read_text().strip()
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def gpus() -> list[dict[str, Any]]:
    """The GPUs that this process may use, each with `name` and `memory_mib` (0: unknown); none without nvidia-smi.

    Those that CUDA_VISIBLE_DEVICES names by number or by UUID; all that the driver shows where it is not set, or names
    something else, as parts of a GPU.
    """
    told = _output("nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
    lines = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    there = [
        (uuid, {"name": name, "memory_mib": int(memory) if memory.isdecimal() else 0})
        for uuid, name, memory in (line for line in lines if len(line) == 3)
    ]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None or (words := allowed.split(","))[0].startswith("MIG-"):
        return [gpu for _, gpu in there]
    found = []
    for word in words:
        matching = [
            gpu
            for number, (uuid, gpu) in enumerate(there)
            if word.strip() == str(number) or (word.strip().startswith("GPU-") and uuid.startswith(word.strip()))
        ]
        if not matching:
            break  # as CUDA does: what comes after a device that is not there is not seen either
        found += matching[:1]
    return found


def slug() -> str:
    """A name for this kind of machine: its GPUs, else its processor, and its cores; `amd-epyc-2-cores`."""
    about = describe()
    what = str(about.get("gpus") or about["cpu"])
    what = re.sub(r"\((R|TM|tm)\)|@.*|,.*|\b(CPU|Processor|\d+-Core)\b", " ", what)
    words = re.findall(r"[a-z0-9]+", what.lower())
    nodes = [str(about["nodes"]), "nodes"] if "nodes" in about else []
    return "-".join([*words[:6], str(about["cores"]), "cores", *nodes])


@cache
def mpi_version() -> str:
    """What mpirun says that it is, in a line; empty where there is none."""
    return _output("mpirun", "--version", env=environment()).partition("\n")[0]


def thread_settings() -> dict[str, str]:
    """The environment variables that decide on threads, where set."""
    return {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ}


def file_system(folder: Path) -> str:
    """The kind of file system that `folder` lies on (ext4, nfs4, tmpfs, …)."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python, of `packages` (those installed) and this checkout's commit."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    told = commit()
    return {**found, "commit": told} if told else found


@cache
def commit() -> str:
    """This checkout's commit, and whether the package or the benchmarks differ from it; empty where nobody knows."""
    here = ("-C", str(Path(__file__).resolve().parents[2]))
    found = _output("git", *here, "rev-parse", "--short", "HEAD").strip()
    changed = _output("git", *here, "status", "--porcelain", "--", "hpc_train", "benchmarks/*.py")
    return found + (" and changes" if found and changed else "")


def _output(*command: str, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; nothing where it is not there, or fails."""
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@contextmanager
def one_core() -> Iterator[None]:
    """Keeps all threads of this process, and those they start, on one core meanwhile."""
    allowed = os.sched_getaffinity(0)
    _pin({min(allowed)})
    try:
        yield
    finally:
        _pin(allowed)


def _pin(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            continue

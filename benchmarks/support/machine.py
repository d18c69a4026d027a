"""What a result depends on: processor, memory, versions, thread settings. Nothing that names the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

THREAD_SETTINGS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "CUDA_VISIBLE_DEVICES")


def describe() -> dict[str, str | int]:
    """Processor, the cores that this process may use, last-level cache, memory and kernel."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found: dict[str, str | int] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    if caches:
        found["last_level_cache"] = caches[-1].read_text().strip()
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


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
    commit = _git("rev-parse", "--short", "HEAD")
    if commit:
        found["commit"] = commit + (" and changes" if _git("status", "--porcelain", "--", "hpc_train") else "")
    return found


def _git(*arguments: str) -> str:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


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

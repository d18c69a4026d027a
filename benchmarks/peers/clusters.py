"""Clusters of tf.distribute and tf.estimator on this machine, without MPI; and the environment of tf.estimator."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from support.launch import Started, environment
from support.usage import MissingError

POLL_SECS = 0.1
Task = tuple[str, int]
"""Kind and number within the kind, as in TF_CONFIG."""


def free_addresses(count: int) -> list[str]:
    """So many addresses of this host that nobody listens at now.

    Their ports are below those that the kernel gives to whoever asks for any: until TensorFlow has started and listens
    there, seconds pass, in which another process could be given one of those.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = first_given if first_given > 10_000 else 32_768
    addresses: list[str] = []
    for port in random.SystemRandom().sample(range(end // 2, end), 200):
        with socket.socket() as probe, suppress(OSError):  # somebody listens there
            probe.bind(("127.0.0.1", port))
            addresses.append(f"127.0.0.1:{port}")
        if len(addresses) == count:
            return addresses
    raise RuntimeError(f"found {len(addresses)} free ports of {count}")


def tf_configs(kinds: Mapping[str, int]) -> dict[Task, str]:
    """TF_CONFIG of each task of a cluster with so many tasks of each kind."""
    addresses = iter(free_addresses(sum(kinds.values())))
    cluster = {kind: [next(addresses) for _ in range(count)] for kind, count in kinds.items()}
    return {
        (kind, index): json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        for kind, count in kinds.items()
        for index in range(count)
    }


def run_cluster(
    kinds: Mapping[str, int],
    arguments: Sequence[str],
    folder: Path,
    limit_secs: float,
    awaited: str,
    python: str = sys.executable,
    gpus: bool = False,
) -> None:
    """Runs `python ARGUMENTS` for each task of a cluster until those of the kind `awaited` have ended.

    The others are ended then. Writes what each prints to `<kind>-<number>.log` in `folder`. gpus: they see those of
    this node.

    Raises:
        RuntimeError: One has failed, or they took longer than `limit_secs`; with what it printed last.
    """
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
    end = time.monotonic() + limit_secs
    with ExitStack() as stack:
        started = {}
        for (kind, index), config in tf_configs(kinds).items():
            env, log = environment({"TF_CONFIG": config, "PATH": path}, gpus), folder / f"{kind}-{index}.log"
            task = Started(f"{kind} {index}", [python, *arguments], folder, env, log)
            started[kind, index] = stack.enter_context(task)
        while missing := [task for (kind, _), task in started.items() if kind == awaited and task.running]:
            for task in started.values():
                if not task.running:
                    task.wait(0)
            if time.monotonic() > end:
                raise missing[0].failure(f"still running after {limit_secs:.0f} s")
            time.sleep(POLL_SECS)
        for (kind, _), task in started.items():
            if kind == awaited:
                task.wait(0)


REQUIREMENTS = ("tensorflow-cpu==2.15.1", "h5py<3.12")
PYTHONS = ("python3.11", "python3.10", "python3.9")
"""Those that TensorFlow 2.15 has wheels for."""
READY = "ready"
LIMIT_SECS = 900.0
CHECK = "import tensorflow as tf, h5py; tf.estimator.Estimator; print(tf.__version__)"


def find_or_build(say: Callable[[str], None], place: Path | None = None) -> str:
    """The environment's Python; builds the environment where it is not there, telling each step by `say`.

    It is kept in the user's cache, as the wheels that `make setup` builds are.

    Raises:
        MissingError: It cannot be built.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = place or cache / "hpc_train" / "estimator-tensorflow-2.15"
    python = place / "bin" / "python"
    if (place / READY).exists():
        try:
            _run(str(python), "-c", CHECK)
            return str(python)
        except MissingError:
            say(f"the environment in {place} does not work any more; building it anew")
    base = find_python()
    say(f"tf.estimator needs TensorFlow 2.15: building an environment for it in {place} with {base}, about 1 GB")
    shutil.rmtree(place, ignore_errors=True)
    _run(base, "-m", "venv", str(place))
    say(f"pip install {' '.join(REQUIREMENTS)}: downloads about 300 MB")
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS)
    version = _run(str(python), "-c", CHECK).split()[-1]
    (place / READY).write_text(f"{version}\n")
    say(f"TensorFlow {version} with tf.estimator is there; remove {place} when it is no longer needed")
    return str(python)


def find_python() -> str:
    """A Python that TensorFlow 2.15 runs on.

    Raises:
        MissingError: There is none.
    """
    if f"python{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS:
        return sys.executable
    for name in PYTHONS:
        if found := shutil.which(name):
            return found
    raise MissingError(f"TensorFlow 2.15 needs one of {', '.join(PYTHONS)}, and none is on PATH")


def _run(*command: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, env={**kept, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True, timeout=LIMIT_SECS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{' '.join(command[:4])} …: {error}") from None
    if done.returncode != 0:
        last = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-1:]
        raise MissingError(f"{' '.join(command[:4])} … failed: {''.join(last) or f'code {done.returncode}'}")
    return done.stdout

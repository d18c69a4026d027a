"""The virtual environment of tf.estimator: TensorFlow 2.15, the last release that has it, beside this one's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.usage import MissingError

REQUIREMENTS = ("tensorflow-cpu==2.15.1", "h5py<3.12")
PYTHONS = ("python3.11", "python3.10", "python3.9")
"""Those that TensorFlow 2.15 has wheels for."""
READY = "ready"
LIMIT_SECS = 900.0
CHECK = "import tensorflow as tf, h5py; tf.estimator.Estimator; print(tf.__version__)"


def default_place() -> Path:
    """Where it is kept: in the user's cache, as the wheels that `make setup` builds are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hpc_train" / "estimator-tensorflow-2.15"


def find_or_build(say: Callable[[str], None], place: Path | None = None) -> str:
    """The environment's Python; builds the environment where it is not there, telling each step by `say`.

    Raises:
        MissingError: It cannot be built.
    """
    place = place or default_place()
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

"""What `hpc-train doctor` reports about Python, TensorFlow and Horovod."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_train.bootstrap.plan import HOROVOD, PYTHONS, TENSORFLOW
from hpc_train.doctor.tools import MARK, Finding, Outcome, last_words
from hpc_train.telemetry.units import counted

# In a process of their own: importing them takes seconds, and one built for another machine crashes.
_PROBE = f"""if True:
    import json
    from importlib import metadata

    def emit(**results):
        print("\\n{MARK}" + json.dumps(results), flush=True)

    try:
        import tensorflow as tf
        gpus = [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
        emit(tensorflow=tf.__version__, tensorflow_gpus=len(gpus), keras=metadata.version("keras"))
    except BaseException as error:
        emit(tensorflow_error=f"{{type(error).__name__}}: {{error}}")
        raise SystemExit
    try:
        import horovod
        import horovod.tensorflow as hvd
        emit(horovod=horovod.__version__, mpi=bool(hvd.mpi_built()), nccl=int(hvd.nccl_built()))
    except BaseException as error:
        emit(horovod_error=f"{{type(error).__name__}}: {{error}}")
"""
IMPORTS_COMMAND = [sys.executable, "-c", _PROBE]
"""The program that imports TensorFlow and Horovod, and prints what they are."""
SET_UP = "run `make setup` in the checkout of hpc_train"
_FIND = f"{SET_UP}, or activate the environment that it made (source .venv/bin/activate)"
_HINTS = (
    (r"No module named '(tensorflow|horovod|mpi4py)'", _FIND),
    (
        r"libmpi(ch|cxx)?\.so|cannot load MPI library",
        "load the module of the MPI that it was built with, or set HPC_TRAIN_MPI=wheel and run `make setup`",
    ),
    (r"lib(cu|nccl|nv)\w*\.so", "load the CUDA module that it was built with"),
    (r"GLIBCXX_|GLIBC_|CXXABI_", "load the module of a newer GCC, whose libstdc++ it needs, or use a newer system"),
    (r"undefined symbol|has not been built", f"it was built for another TensorFlow or without it: {SET_UP}"),
    (r"Keras cannot be imported", f"unset KERAS_BACKEND, or {SET_UP}"),
    (r"SIGILL", "this CPU lacks instructions that it was built for (AVX): use another, or a build for this one"),
    (r"did not end within", "the file system that Python's packages lie on may be slow or gone; try again"),
    (r"No space left|Cannot allocate memory|MemoryError|SIGKILL", "free some memory, or ask for more (--mem)"),
)

_WITHOUT = re.compile(r"No module named 'horovod'")


def python_finding(version: Sequence[int], executable: str) -> Finding:
    """Whether this Python will do. Pure."""
    found = f"{'.'.join(map(str, version))}, {executable}"
    if ".".join(map(str, version[:2])) in PYTHONS:
        return Finding("Python", "ok", found, needed=True)
    advice = f"use Python {PYTHONS[-1]} to {PYTHONS[0]}: make setup PYTHON=python{PYTHONS[1]}"
    return Finding("Python", "fails", found, advice, needed=True)


def tensorflow_finding(outcome: Outcome, results: Mapping[str, Any], gpus: int, hidden: bool) -> Finding:
    """Whether TensorFlow can be imported and is one of those that this package runs on. Pure.

    Args:
        outcome: Of IMPORTS_COMMAND; results: what it has reported.
        gpus: How many there are here; hidden: whether CUDA_VISIBLE_DEVICES keeps them from TensorFlow.
    """
    if "tensorflow" not in results:
        found = results.get("tensorflow_error") or outcome.failure or "its import ended without a word"
        return _failure("TensorFlow", found)
    version, sees = results["tensorflow"], results.get("tensorflow_gpus", 0)
    found = f"{version}, Keras {results.get('keras', '?')}, sees {counted(sees, 'GPU') if sees else 'no GPUs'}"
    oldest, newest = _numbers(TENSORFLOW[0])[:2], _numbers(TENSORFLOW[-1])[:2]
    span = f"{'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
    if _numbers(version)[:2] < oldest:
        advice = f"hpc_train needs TensorFlow {span}, with Keras 3: {SET_UP}"
        return Finding("TensorFlow", "fails", found, advice, needed=True)
    if _numbers(version)[:2] > newest:
        advice = f"hpc_train was tried with {span}; go on, or make setup TF={TENSORFLOW[-1]}"
        return Finding("TensorFlow", "warning", found, advice, needed=True)
    if sees < gpus and hidden:
        return Finding("TensorFlow", "ok", f"{found} (CUDA_VISIBLE_DEVICES hides the others)", needed=True)
    if sees < gpus:
        advice = (
            "jobs will train on the CPU: run `HPC_TRAIN_GPU=1 make setup`, which installs TensorFlow with CUDA, and "
            "see that the driver is new enough for it"
        )
        return Finding("TensorFlow", "warning", f"{found} of {gpus}", advice, needed=True)
    return Finding("TensorFlow", "ok", found, needed=True)


def horovod_finding(outcome: Outcome, results: Mapping[str, Any], gpus: int) -> Finding:
    """Whether Horovod can be imported, and was built with MPI for this TensorFlow. Pure; arguments as above."""
    if "tensorflow" not in results:
        return Finding("Horovod", "fails", "needs TensorFlow, see there", needed=True)
    if _WITHOUT.search(results.get("horovod_error", "")):
        return Finding("Horovod", "not here", "gradients are averaged by MPI itself, as with run.allreduce: mpi")
    if "horovod" not in results:
        return _failure("Horovod", results.get("horovod_error") or outcome.failure or "its import ended without a word")
    version, nccl = results["horovod"], int(results.get("nccl", 0))
    found = f"{version} with TensorFlow{', MPI' if results['mpi'] else ''}{', NCCL' if nccl else ''}"
    if not results["mpi"]:
        advice = f"it was built without MPI: {SET_UP}, which builds it with the MPI on PATH, or one of its own"
        return Finding("Horovod", "fails", found, advice, needed=True)
    if version != HOROVOD:
        return Finding("Horovod", "warning", found, f"hpc_train was tried with {HOROVOD}: {SET_UP}", needed=True)
    if gpus and not nccl:
        advice = (
            "gradients of GPUs go through the host: load a CUDA module (nvcc on PATH) and run `HPC_TRAIN_GPU=1 make "
            "setup`, which builds it with NCCL"
        )
        return Finding("Horovod", "warning", f"{found}, without NCCL", advice, needed=True)
    return Finding("Horovod", "ok", found, needed=True)


def advice_for(problem: str) -> str | None:
    """What to do about `problem`, an error of an import or of a crash, where that is known. Pure."""
    return next((advice for pattern, advice in _HINTS if re.search(pattern, problem)), None)


def this_python() -> Finding:
    """python_finding of the Python that runs this."""
    return python_finding(sys.version_info[:3], _short(sys.executable))


def _failure(check: str, problem: str) -> Finding:
    return Finding(check, "fails", last_words(problem), advice_for(problem) or SET_UP, needed=True)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _short(path: str) -> str:
    home = os.path.expanduser("~")  # noqa: PTH111
    return "~" + path[len(home) :] if home != "/" and path.startswith(home + os.sep) else path

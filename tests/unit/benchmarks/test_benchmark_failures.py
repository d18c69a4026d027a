"""What benchmarks say where something that they need is missing or fails."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))  # before tests/, which has a support.py, too

from peers.memory import check_memory
from peers.models import LARGE, MLP
from support import launch
from support.failures import in_short
from support.usage import UsageError


@pytest.mark.parametrize(
    ("script", "more"),
    [("overhead", ()), ("tuning", ()), ("collectives", ("--ranks", "2", "--oversubscribe"))],
)
def test_without_mpirun_nothing_is_measured_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, more: tuple[str, ...]
):
    nowhere = {"PATH": str(tmp_path)}
    monkeypatch.setattr(launch, "environment", lambda *_, **__: nowhere)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--quick", "--out", str(tmp_path / "out"), *more])
    with pytest.raises(UsageError, match="no mpirun on PATH: load"):
        importlib.import_module(script).main()
    assert list(tmp_path.iterdir()) == []


RULE = 74 * "-"
ENDED = [RULE, "Primary job terminated normally, but 1 process returned", "a non-zero exit code.", RULE]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("the loss was 2.3: it does not train", "the loss was 2.3: it does not train"),
        ("mpirun -np 2 /a/python -m b --out /tmp/x: still running after 80 s", "mpirun: still running after 80 s"),
        (["mpirun -np 2 a: code 1", "one", "two", "", "three", "four"], "mpirun: code 1; two; three; four"),
        (["mpirun -np 2 a: code 1", "ValueError: no", *ENDED], "mpirun: code 1; ValueError: no"),
        (
            ["mpirun -np 2 a: code 1", "cut off", *ENDED[-1:], "ValueError: no", *ENDED],
            "mpirun: code 1; ValueError: no",
        ),
        (
            ["mpirun -np 2 a: code 1", RULE, "There are not enough slots", "available", RULE],
            "mpirun: code 1; There are not enough slots; available",
        ),
        ("", "RuntimeError"),
        (500 * "a", 159 * "a" + "…"),
    ],
)
def test_a_failure_is_told_in_one_line(text: str | list[str], told: str):
    assert in_short(RuntimeError(text if isinstance(text, str) else "\n".join(text))) == told


def test_a_model_that_does_not_fit_is_refused():
    check_memory([MLP, LARGE], 2, 10**11)
    with pytest.raises(UsageError, match=r"MLP 20 M on 2 ranks needs about .* GB of memory, and 2\.5 GB are free"):
        check_memory([MLP, LARGE], 2, 2_500_000_000)


def test_by_default_a_model_has_to_fit_into_what_the_job_has_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peers.memory.available_bytes", lambda: 2_500_000_000)  # a limit of Slurm's, as data/memory.py
    with pytest.raises(UsageError, match=r"2\.5 GB are free"):
        check_memory([LARGE], 2)


def test_to_ask_for_memory_starts_neither_tensorflow_nor_mpi(tmp_path: Path):
    text = "import sys, peers.memory; print(sorted({'tensorflow', 'keras', 'mpi4py', 'horovod'} & set(sys.modules)))"
    path = f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}"
    done = run_program([sys.executable, "-c", text], tmp_path, timeout=60, PYTHONPATH=path)
    assert done.stdout == "[]\n", done.stderr

"""Which process is known for what has started a job: by what it runs, not by words among its arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.jobs.schedulers.starter import _known

PYTHON = "/site/bin/python3.11"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([PYTHON, "/site/bin/hpc-train", "launch", "-n", "2", "job.yaml"], "hpc-train launch"),
        ([PYTHON, "-u", "-m", "hpc_train", "--log-level", "debug", "-v", "launch", "job.yaml"], "hpc-train launch"),
        (["hpc-train", "launch", "job.yaml"], "hpc-train launch"),
        (["/usr/bin/mpirun", "-np", "2", "python", "train.py"], "mpirun"),
        ([PYTHON, "/site/bin/horovodrun", "-np", "2", "python", "train.py"], "horovodrun"),
        (["tmux", "new", "hpc-train", "launch", "job.yaml"], None),
        (["SCREEN", "-dm", "hpc-train", "launch"], None),
        (["timeout", "600", "hpc-train", "launch"], None),
        (["emacs", "hpc_train", "launch"], None),
        (["tmux", "new", "horovodrun"], None),
        ([PYTHON, "-m", "hpc_train", "train", "job.yaml", "--job-dir", "launch"], None),
        ([PYTHON, "-m"], None),
        ([], None),
    ],
)
def test_what_a_process_runs(words: list[str], what: str | None) -> None:
    process: Any = SimpleNamespace(pid=1)
    found = _known(process, words)
    assert (found and found.what) == what

"""/dev/shm with next to no room, as containers may have it: told in a sentence, before a rank dies of SIGBUS."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.faults.support import namespace
from tests.support import Job, mpirun, run_program, variables

MakeJob = Callable[..., Job]
WIDE = """
import keras

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(20_000), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""
"""Its parameters take a MB, so a window with two copies and a mailbox takes three."""


def test_ranks_without_shared_memory(make_job: MakeJob) -> None:
    """A synchronous job does without, which is said; an asynchronous one cannot, unless it is told to."""
    tiny = namespace("--mount", "mount -t tmpfs -o size=1m tmpfs /dev/shm")

    def train(job: Job, **env: str) -> tuple[int, str, str]:
        program = [sys.executable, "-m", "hpc_train", "train", str(job.file), "--job-dir", str(job.job_dir)]
        done = run_program([*tiny, *mpirun(2), *program], job.folder, **env)
        return done.returncode, done.stdout, done.stderr

    short = {"train": {"max_steps": 3}, "eval": {"start_delay_secs": 10**6}}
    job = make_job("sync", model=WIDE, **short)
    code, out, err = train(job)
    assert code == 0, out + err
    told = [line for line in (out + err).splitlines() if "/dev/shm" in line]
    assert len(told) == 1, out + err
    assert re.match(r"warning: /dev/shm has less than 4.2 MB free on \S+: ranks of one node exchange ", told[0]), told
    assert "make it larger (docker run --shm-size" in told[0]
    assert all(np.isfinite(array).all() for array in variables(job.job_dir, 3).values())

    job = make_job("async", model=WIDE, run={"strategy": "async"}, **short)
    code, out, err = train(job)
    assert code == 2, out + err
    errors = [line for line in err.splitlines() if line.startswith("hpc-train: error: ")]
    assert len(errors) == 1, err
    said = r"/dev/shm has 1\.0 MB free, but parameters and gradients of this job need 3\.\d MB there; make it larger"
    assert re.search(said, errors[0]), err
    assert "OMPI_MCA_osc=pt2pt" in errors[0]
    assert "Traceback" not in err
    assert "Bus error" not in err
    assert not Path(job.job_dir).exists()

    code, out, err = train(job, OMPI_MCA_osc="pt2pt")
    assert code == 0, out + err
    found = variables(job.job_dir, 3)
    assert [int(array) for name, array in found.items() if name.endswith("iteration")] == [3]

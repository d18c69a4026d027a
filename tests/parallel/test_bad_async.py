"""Bad input of asynchronous jobs, and MPIs that cannot do it: one clear error before training, and nothing written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks import train
from tests.support import Job, run_ranks

MakeJob = Callable[..., Job]
PROGRAMS = Path(__file__).parent / "programs"

MPI_BEFORE = """
from hpc_train.distributed.startup import _bind_mpi_at_once
_bind_mpi_at_once()  # else mpi4py's wheel may end with another hwloc than it began with
from mpi4py import MPI  # before the package, so that MPI starts with THREAD_MULTIPLE
import sys
import hpc_train as ht
job = ht.load_job(sys.argv[1])
def model(params):
    import keras
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
ht.train_and_evaluate(ht.Estimator(model, job.run_config(sys.argv[2])), job.train_spec(), job.eval_specs())
"""


def said_once(done: subprocess.CompletedProcess[str], job: Job) -> str:
    """The one error of a program that ended with code 2 and wrote nothing."""
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if "hpc-train: error:" in line]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert not job.job_dir.exists()
    return errors[0]


def test_every_kind_of_bad_input(tmp_path: Path) -> None:
    done = run_ranks(3, [PROGRAMS / "bad_async.py", tmp_path], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("cases are fine") == 3


@pytest.mark.parametrize(
    ("ranks", "servers", "said"),
    [
        (0, 1, "1 rank cannot be split into 1 parameter server and no worker; start at least 2 ranks"),
        (2, 2, "2 ranks are 2 parameter servers and no worker; start at least 3 ranks"),
    ],
)
def test_a_job_without_a_worker(make_job: MakeJob, ranks: int, servers: int, said: str) -> None:
    job = make_job(run={"strategy": "async", "parameter_servers": servers})
    assert f"hpc-train: error: run.parameter_servers: {said}" in said_once(train(job, ranks), job)


def test_a_mistake_in_the_job_file_is_told_once(make_job: MakeJob) -> None:
    job = make_job(run={"strategy": "async", "max_staleness": -1})
    error = said_once(train(job, 2), job)
    assert "run.max_staleness: -1 is not allowed; it should be greater than or equal to 0" in error


def test_an_mpi_without_one_sided_communication(make_job: MakeJob) -> None:
    job = make_job(run={"strategy": "async"})
    error = said_once(train(job, 2, OMPI_MCA_osc="^sm,rdma,pt2pt,ucx,monitoring,portals4"), job)
    assert "strategy: async needs one-sided communication, which Open MPI v" in error
    assert "let Open MPI choose again (unset OMPI_MCA_osc and OMPI_MCA_btl, or" in error


def test_an_mpi_that_was_started_for_several_threads_at_once(make_job: MakeJob, tmp_path: Path) -> None:
    """Open MPI 4 has no one-sided communication over TCP then."""
    job = make_job(run={"strategy": "async"})
    tcp = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_osc": "pt2pt"}
    error = said_once(run_ranks(2, ["-c", MPI_BEFORE, job.file, job.job_dir], tmp_path, **tcp), job)
    assert "strategy: async needs one-sided communication" in error
    assert "set mpi4py.rc.thread_level = 'serialized' before the first import of mpi4py.MPI" in error

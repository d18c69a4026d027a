"""run.allreduce: a job by MPI itself is one by Horovod, and one without Horovod finds out by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "allreduce.py"
REFUSALS = PROGRAM.with_name("gpu_refusals.py")


@pytest.mark.parametrize("carrier", ["mpi", "mpi-gpu"])
def test_jobs_by_mpi_are_those_by_horovod_to_the_bit(carrier: str, tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, tmp_path, carrier], tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is fine") == 2


def test_mpi_in_the_memory_of_gpus_is_refused_where_it_would_fail(tmp_path: Path) -> None:
    done = run_ranks(2, [REFUSALS], tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("rank 1 on", "gets wrong sums", "MemoryError: no room", "CUDA-aware", "no GPU that TensorFlow"):
        assert words in done.stdout, done.stdout
    assert done.stdout.count("take run.allreduce: mpi, which goes through the host") == 8


def test_an_mpi_that_fails_on_one_rank_ends_them_all(tmp_path: Path) -> None:
    done = run_ranks(2, [REFUSALS, "mpi fails"], tmp_path)
    assert done.returncode == 2, done.stderr
    [said] = [line for line in done.stderr.splitlines() if line.startswith("hpc-train: error: ")]
    assert said.startswith("hpc-train: error: run.allreduce: mpi-gpu: rank 1 on")
    assert "MPI does not like it" in said


def test_without_horovod_mpi_takes_its_place_and_asking_for_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'horovod':\n"
        "            raise ModuleNotFoundError(\"No module named 'horovod'\", name='horovod')\n"
        "sys.meta_path.insert(0, Without())\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'horovod']:\n"
        "    del sys.modules[name]\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'horovod' else real(name, *rest)\n"
        "from hpc_train.distributed.startup import join_world\n"
        "from hpc_train.distributed.carrier import carrier_of, collectives_by\n"
        "from hpc_train.errors import UserError\n"
        "world = join_world()\n"
        "assert (carrier_of(world), carrier_of(world, 'horovod')) == ('mpi', 'horovod')\n"
        "assert collectives_by(carrier_of(world), world).ranks == 2\n"
        "try:\n"
        "    collectives_by('horovod', world)\n"
        "except UserError as error:\n"
        "    print('refused:', error)\n"
    )
    done = run_ranks(2, [tmp_path / "program.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("set run.allreduce: mpi") == 2, done.stdout

"""run.allreduce: a job by MPI itself is one by Horovod, and one without Horovod finds out by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "allreduce.py"


@pytest.mark.parametrize("carrier", ["mpi", "mpi-gpu"])
def test_jobs_by_mpi_are_those_by_horovod_to_the_bit(carrier: str, tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM, tmp_path, carrier], tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is fine") == 2


def test_mpi_in_the_memory_of_gpus_is_refused_where_it_would_fail(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from hpc_train.distributed import gpu_memory\n"
        "from hpc_train.distributed.carrier import collectives_by\n"
        "from hpc_train.distributed.startup import join_world\n"
        "from hpc_train.errors import UserError\n"
        "from tests.gpu import stand_in_for_gpu\n"
        "world = join_world()\n"
        "def refused():\n"
        "    try:\n"
        "        collectives_by('mpi-gpu', world)\n"
        "    except UserError as error:\n"
        "        print(error)\n"
        "says = gpu_memory.takes_gpu_memory\n"
        "stand_in_for_gpu()\n"
        "gpu_memory.takes_gpu_memory = says\n"
        "refused()\n"
        "gpu_memory.takes_gpu_memory = lambda: True\n"
        "memory = gpu_memory._Memory\n"
        "class Wrong(memory):\n"
        "    def __init__(self, tensor):\n"
        "        super().__init__(tensor + 1)\n"
        "        self.tensor = tensor + (not world.is_chief)\n"
        "gpu_memory._Memory = Wrong\n"
        "refused()\n"
        "def fails(tensor):\n"
        "    if world.is_chief:\n"
        "        return memory(tensor)\n"
        "    raise MemoryError('no room')\n"
        "gpu_memory._Memory = fails\n"
        "refused()\n"
        "import tensorflow as tf\n"
        "if not world.is_chief:\n"
        "    tf.config.list_logical_devices = lambda kind: []\n"
        "refused()\n"
    )
    done = run_ranks(2, [tmp_path / "program.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("CUDA-aware", "gets wrong sums", "as another rank cannot", "no GPU that TensorFlow"):
        assert words in done.stdout, done.stdout
    assert done.stdout.count("take run.allreduce: mpi, which goes through the host") == 8


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

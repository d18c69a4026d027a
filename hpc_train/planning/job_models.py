"""The model of a job as the first ranks of meshes have it: its sizes, and what is against training it."""

from __future__ import annotations

import resource
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_train.config.job import JobConfig
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.loading.class_weight import weighted
from hpc_train.data.loading.tf_dataset import context_for, open_training
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.tensors import nbytes_of
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.job_model import JobModel
from hpc_train.parallel.divided import Divided
from hpc_train.planning.holdings import Choice, ModelSizes
from hpc_train.planning.model_sizes import sizes_of
from hpc_train.planning.refusals import Refusals, refusals_of


@dataclass(frozen=True)
class Built:
    """What is known of a model once it has been built for a mesh.

    Attributes:
        divides: Whether there are layers that a mesh divides.
        table: The layer of keras.layers.Embedding that has more than half of the parameters.
    """

    sizes: ModelSizes
    refusals: Refusals
    divides: bool
    table: str | None


class JobModels:
    """The job's model, built once for each mesh.

    Attributes:
        rows: Of a batch of a rank. process: bytes of a process before there is a model.
    """

    def __init__(self, job: JobConfig, code: Path, stack: ExitStack) -> None:
        with suppress(RuntimeError):  # TensorFlow was already running
            tf.config.set_visible_devices([], "GPU")  # nothing is computed
        set_up_tensorflow(World.alone())
        self._run = job.run
        source = job.data.train
        self.rows = source.batch_size
        self._shards = find_shards(source)
        self._model = JobModel.of_job(job, code, code)
        context = context_for(0, 1, source, job.run.tf_random_seed)
        opened = stack.enter_context(open_training(source, self._shards, context, load=self._model.load))
        self._dataset = opened.dataset
        if (weights := job.train_spec().class_weight) is not None:
            self._dataset = weighted(self._dataset, weights, 1)
        self.process = _resident()
        self._known: dict[tuple[int, int], Built | UserError] = {}

    def built(self, choice: Choice, near: bool = False) -> Built:
        """The model as the first rank that trains has it.

        Args:
            near: What is known of a mesh with the same model axis will do, where that says what a rank holds.

        Raises:
            UserError: The layers cannot be divided so, or the model cannot be used at all.
        """
        key = (1, 1) if choice.servers else (choice.data, choice.model)
        if near and key not in self._known and self._run.sparse_gradients == "dense":
            known = next((one for (_, model), one in self._known.items() if model == key[1]), None)
            if isinstance(known, Built) and not known.sizes.averaged("alone"):
                return known
        if key not in self._known:
            self._known[key] = self._build(Mesh(*key))
        found = self._known[key]
        if isinstance(found, UserError):
            raise found
        return found

    def _build(self, mesh: Mesh) -> Built | UserError:
        try:
            sizes, model = sizes_of(self._model.estimator(), self._dataset, mesh, self._run.accumulate_steps)
        except UserError as error:
            return error
        divides = any(isinstance(layer, Divided) for layer in model._flatten_layers())
        return Built(sizes, refusals_of(model, self._model.config, self._run, mesh), divides, _table(model))


def _table(model: keras.Model) -> str | None:
    half = sum(map(nbytes_of, model.trainable_variables)) / 2
    for layer in model._flatten_layers():
        own = isinstance(layer, keras.layers.Embedding) and not isinstance(layer, Divided)
        if own and sum(map(nbytes_of, layer.trainable_variables)) > half:
            return str(layer.name)
    return None


def _resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

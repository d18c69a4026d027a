"""The plan of a job: each way to divide it among its ranks, from its model, data and resources. Trains nothing."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.job import JobConfig
from hpc_train.config.resources import Resources, parse_memory
from hpc_train.config.specs import RunOptions
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.loading.class_weight import weighted
from hpc_train.data.loading.tf_dataset import context_for, open_training
from hpc_train.data.memory import available_bytes
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_pieces import OPTION
from hpc_train.distributed.optimizer_trials import refuse_uncuttable
from hpc_train.distributed.optimizer_variables import refuse_loss_scale
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.share import share_of
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.job_model import JobModel
from hpc_train.model.own_steps import has_own_train_step
from hpc_train.parallel.checks import check_layers
from hpc_train.parallel.divided import Divided
from hpc_train.planning.holdings import Choice, ModelSizes
from hpc_train.planning.model_sizes import sizes_of
from hpc_train.planning.options import (
    Memory,
    Option,
    choices,
    first_that_fits,
    in_pieces,
    more_ranks,
    option,
    rows_that_fit,
)
from hpc_train.strategies import strategy_of
from hpc_train.strategies.asynchronous.strategy import check_model
from hpc_train.telemetry.units import counted

Run = TypeVar("Run", bound=RunOptions)


@dataclass(frozen=True)
class JobPlan:
    """What `ranks` ranks will hold and send, for each way to divide the job among them.

    Attributes:
        sizes: The model on one rank of the job as it asks. nodes: on which the ranks lie.
        best: What the job asks for where that fits, else the first option that does.
        on_more: Where none fits, what would on more ranks; None: nothing that was looked at.
        rows: Of a batch that would fit as the job asks, where none does; batch: what it has.
        notes: What is to be said beside.
    """

    job: str
    ranks: int
    nodes: int
    batch: int
    sizes: ModelSizes
    memory: Memory
    options: tuple[Option, ...]
    best: Option | None
    on_more: Option | None
    rows: int | None
    notes: tuple[str, ...] = ()


def plan_job(job: JobConfig, code: Path, ranks: int, resources: Resources, memory: str | None = None) -> JobPlan:
    """The plan of `job`, whose code is in `code`. Local.

    Args:
        memory: What a rank may take, such as "80G"; None: what the job's resources say, or this machine has left.

    Raises:
        UserError: The model or the data cannot be used, or the ranks are too few. Whatever the model raises.
    """
    if isinstance(job.model, GBDTModel):
        raise UserError("model: gbdt: trees have no parameters that ranks hold or exchange; `plan` is for Keras models")
    roles = strategy_of(job.run.strategy).roles(ranks, job.run)
    room, nodes = _memory_of(resources, ranks, memory)
    with ExitStack() as stack:
        models = _Models(job, code, stack)
        return _planned(job, models, roles, nodes, room)


def _planned(job: JobConfig, models: _Models, roles: Roles, nodes: int, room: Memory) -> JobPlan:
    ranks, sharded = roles.size, job.run.shard_optimizer
    asked = Choice(roles.trainers, roles.model, sharded, roles.servers, int(roles.dedicated))
    sizes = models.sizes(asked)
    options = models.options(ranks, asked)
    best = first_that_fits(options, room)
    own = next(one for one in options if one.asked)
    on_more = rows = None
    if best is None and room.nbytes is not None:
        on_more = more_ranks(ranks, room, lambda more: models.options(more))
        rows = rows_that_fit(own, room, models.rows) if own.ranks else None
    notes = [*in_pieces(sizes), *dict.fromkeys(models.notes)]
    return JobPlan(job.name, ranks, nodes, models.rows, sizes, room, options, best, on_more, rows, tuple(notes))


class _Models:
    """The job's model as the first ranks of meshes have it, each built once.

    Attributes:
        rows: Of a batch of a rank.
    """

    def __init__(self, job: JobConfig, code: Path, stack: ExitStack) -> None:
        self._job = job
        with suppress(RuntimeError):  # TensorFlow was already running
            tf.config.set_visible_devices([], "GPU")  # nothing is computed
        set_up_tensorflow(World.alone())
        source = job.data.train
        self.rows = source.batch_size
        self._shards = find_shards(source)
        self._model = JobModel.of_job(job, code, code)
        context = context_for(0, 1, source, job.run.tf_random_seed)
        opened = stack.enter_context(open_training(source, self._shards, context, load=self._model.load))
        self._dataset = opened.dataset
        if (weights := job.train_spec().class_weight) is not None:
            self._dataset = weighted(self._dataset, weights, 1)
        self._process = _resident()
        self._known: dict[tuple[int, int], ModelSizes | UserError] = {}
        self._refused: dict[str, str] = {}
        self.divides = False
        self.notes: list[str] = []

    def sizes(self, choice: Choice, near: bool = False) -> ModelSizes:
        """The model as the first rank that trains has it.

        Args:
            near: What is known of a mesh with the same model axis will do, where that says what a rank holds.

        Raises:
            UserError: The layers cannot be divided so.
        """
        data, model = (1, 1) if choice.servers else (choice.data, choice.model)
        if near and (data, model) not in self._known:
            of_others = (one for (_, other), one in self._known.items() if other == model)
            known = next(of_others, None)
            if isinstance(known, ModelSizes) and not known.averaged("alone"):
                return known
        if (data, model) not in self._known:
            self._known[data, model] = self._measured(Mesh(data, model))
        found = self._known[data, model]
        if isinstance(found, UserError):
            raise found
        return found

    def _measured(self, mesh: Mesh) -> ModelSizes | UserError:
        try:
            found, model = sizes_of(self._model.estimator(), self._dataset, mesh, self._job.run.accumulate_steps)
            check_layers(model, self._model.config, mesh.model, has_own_train_step(model))
            if held := [variable for variable in model.trainable_variables if share_of(variable) is not None]:
                refuse_uncuttable(model.optimizer, held, "ht.parallel", "take the layers of keras.layers")
        except UserError as error:
            if mesh.model == 1:
                raise
            return error
        if not self._known:
            self._look_at(model)
        if found.activations is None:
            self.notes.append("the model runs eagerly (run_eagerly): its activations are not known")
        return found

    def _look_at(self, model: keras.Model) -> None:
        """Notes what of all options cannot be."""
        self.divides = any(isinstance(layer, Divided) for layer in model._flatten_layers())
        with self._refusing("sharded"):
            if not has_own_train_step(model):
                refuse_uncuttable(model.optimizer, model.trainable_variables, OPTION, "leave shard_optimizer out")
        with self._refusing("async"):
            _check_asynchronous(self._job.run)
            check_model(model)
            refuse_loss_scale(model.optimizer)
            check_layers(model, _asynchronous(self._model.config), 1, own_step=False)

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self._refused[what] = str(error)

    def options(self, ranks: int, asked: Choice | None = None) -> tuple[Option, ...]:
        """Each way for so many ranks; `asked` is the job's own. None: only what ranks hold matters."""
        if asked is not None:
            self.sizes(asked)
        servers = asked.servers if asked is not None and asked.servers else 1
        idle = int(self._job.run.strategy == "sync" and self._job.run.chief == "dedicated")
        ways = list(choices(ranks, "sharded" not in self._refused, self.divides, idle, servers))
        if asked is not None and asked not in ways:
            ways.insert(0, asked)
        return tuple(replace(self._option(way, asked is None), asked=way == asked) for way in ways)

    def _option(self, choice: Choice, near: bool) -> Option:
        kind = "async" if choice.servers else "sharded" if choice.shard_optimizer else ""
        if kind in self._refused:
            return Option(choice, refused=self._refused[kind])
        try:
            sizes = self.sizes(choice, near)
        except UserError as error:
            return Option(choice, refused=str(error))
        run = self._job.run
        exports = any(spec.exporters for spec in self._job.eval_specs())
        return option(sizes, choice, run.accumulate_steps > 1, run.compression is not None, self._process, exports)


def _check_asynchronous(run: RunOptions) -> None:
    """UserError where a key of `run` is for synchronous jobs alone, but for those that divide them."""
    try:
        _asynchronous(run)
    except ValidationError as error:
        raise UserError(f"run: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _asynchronous(run: Run) -> Run:
    return replace(run, strategy="async", chief="train", shard_optimizer=False, mesh=None)


def _memory_of(resources: Resources, ranks: int, given: str | None) -> tuple[Memory, int]:
    """What a rank may take, and how many nodes the ranks lie on."""
    a_node = min(ranks, resources.ranks_per_node if resources.ranks_per_node > 1 else ranks)
    nodes = -(-ranks // a_node)
    device = resources.gpus_per_node > 0
    if given is not None:
        try:
            return Memory(parse_memory(given) << 20, "--memory", device), nodes
        except ValueError:
            raise UserError(f"--memory: {given!r} is no size; allowed: such as 500M, 16G or 1T") from None
    if device:
        return Memory(None, "the GPUs' memory is not known; give it by --memory, such as 80G", True), nodes
    shared = f", shared by {counted(a_node, 'rank')}" if a_node > 1 else ""
    if resources.memory is not None:
        nbytes = parse_memory(resources.memory) << 20
        return Memory(nbytes // a_node, f"{resources.memory} a node (resources.memory){shared}"), nodes
    return Memory(available_bytes() // a_node, f"what this machine has left{shared}"), nodes


def _resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

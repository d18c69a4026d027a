"""The plan of a job: each way to divide it among its ranks, from its model, data and resources. Trains nothing."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.job import JobConfig
from hpc_train.config.resources import Resources, parse_memory
from hpc_train.data.memory import available_bytes
from hpc_train.distributed.roles import Roles
from hpc_train.errors import UserError
from hpc_train.planning.holdings import Choice, Exports, ModelSizes
from hpc_train.planning.job_models import JobModels
from hpc_train.planning.options import (
    Memory,
    Option,
    choices,
    distinct,
    first_that_fits,
    in_pieces,
    more_ranks,
    option,
    rows_that_fit,
)
from hpc_train.strategies import strategy_of
from hpc_train.telemetry.units import counted

FOR = "plan is for jobs that train a Keras model (`model:`), of which it shows what each rank holds and sends"


@dataclass(frozen=True)
class JobPlan:
    """What `ranks` ranks will hold and send, for each way to divide the job among them.

    Attributes:
        sizes: The model on one rank of the job as it asks. nodes: on which the ranks lie.
        best: What the job asks for where that fits, else the first option that does.
        on_more: Where none fits, what would on more ranks; None: nothing that was looked at.
        unexported: Where none fits, what would without exporters on as many ranks, or on fewer than `on_more`.
        rows: Of a batch that would fit as the job asks, where none does; batch: what it has.
        table: The layer of keras.layers.Embedding that has most of the model, of which each rank has all.
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
    unexported: Option | None
    rows: int | None
    table: str | None
    notes: tuple[str, ...] = ()


def plan_job(job: JobConfig, code: Path, ranks: int, resources: Resources, memory: str | None = None) -> JobPlan:
    """The plan of `job`, whose code is in `code`. Local.

    Args:
        memory: What a rank may take, such as "80G"; None: what the job's resources say, or this machine has left.

    Raises:
        UserError: The model or the data cannot be used, or the ranks are too few. Whatever the model raises.
    """
    if isinstance(job.model, GBDTModel):
        raise UserError(f"model: gbdt: trees have no parameters that ranks hold or exchange; {FOR}")
    roles = strategy_of(job.run.strategy).roles(ranks, job.run)
    room, nodes = _memory_of(resources, ranks, memory)
    with ExitStack() as stack:
        return _planned(job, JobModels(job, code, stack), roles, nodes, room)


def _planned(job: JobConfig, models: JobModels, roles: Roles, nodes: int, room: Memory) -> JobPlan:
    asked = Choice(roles.trainers, roles.model, job.run.shard_optimizer, roles.servers, int(roles.dedicated))
    ways = _Ways(job, models, asked)
    options = ways.options(roles.size)
    own = next(one for one in options if one.asked)
    if not any(one.ranks for one in options):
        raise UserError(own.refused or "")
    best = first_that_fits(options, room)
    on_more = unexported = rows = None
    if best is None and room.nbytes is not None:
        on_more = ways.on_more(roles.size, room)
        unexported = ways.without_exporters(roles.size, room, on_more)
        rows = rows_that_fit(own, room, models.rows) if own.ranks else None
    notes = in_pieces(ways.sizes)
    if ways.sizes.activations is None:
        notes.append("the model runs eagerly (run_eagerly): its activations are not known")
    return JobPlan(
        job.name,
        roles.size,
        nodes,
        models.rows,
        ways.sizes,
        room,
        options,
        best,
        on_more,
        unexported,
        rows,
        ways.table,
        tuple(notes),
    )


class _Ways:
    """The ways to divide a job which is `asked` for one of them.

    Attributes:
        sizes: Of the model as it is asked for, or where that cannot be, without a mesh. table: see JobPlan.
    """

    def __init__(self, job: JobConfig, models: JobModels, asked: Choice) -> None:
        self._job, self._models, self._asked = job, models, asked
        try:
            first = models.built(asked)
        except UserError:
            if asked.model == 1:
                raise
            first = models.built(Choice(asked.ranks))
        self.sizes, self.table = first.sizes, first.table
        self._divides, self._refusals = first.divides, first.refusals
        tables = {exporter.tables for spec in job.eval_specs() for exporter in spec.exporters}
        self._exports: Exports = ("shards" if "shards" in tables else "whole") if tables else None

    def on_more(self, ranks: int, room: Memory, exports: bool = True) -> Option | None:
        """What fits on twice as many ranks, or more."""
        return more_ranks(ranks, room, lambda more: self.options(more, near=True, exports=exports))

    def without_exporters(self, ranks: int, room: Memory, on_more: Option | None) -> Option | None:
        """What fits on as many ranks or more where the chief exports nothing; on fewer than `on_more` has."""
        if not self._exports:
            return None
        found = first_that_fits(self.options(ranks, exports=False), room) or self.on_more(ranks, room, exports=False)
        return found if found and (on_more is None or found.choice.size < on_more.choice.size) else None

    def options(self, ranks: int, near: bool = False, exports: bool = True) -> tuple[Option, ...]:
        """Each way for so many ranks.

        Args:
            near: Only what ranks hold matters. exports: the chief exports what the job file says.
        """
        asked = self._asked if self._asked.size == ranks else None
        servers = self._asked.servers or 1 if asked else 1
        ways = list(choices(ranks, self._refusals.sharded is None, self._divides, self._asked.idle, servers))
        if asked is not None and asked not in ways:
            ways.insert(0, asked)
        return distinct([replace(self._option(way, near, exports), asked=way == asked) for way in ways])

    def _option(self, choice: Choice, near: bool, exports: bool) -> Option:
        refused = self._refusals.served if choice.servers else None  # its model is not built then
        try:
            built = None if refused else self._models.built(choice, near)
        except UserError as error:
            return Option(choice, refused=str(error))
        if built is None or (refused := built.refusals.of(choice)):
            return Option(choice, refused=refused)
        run = self._job.run
        pieces, halves = run.accumulate_steps > 1, run.compression is not None
        return option(built.sizes, choice, pieces, halves, self._models.process, self._exports if exports else None)


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

"""The plan of a job: each way to divide it among its ranks, from its model, data and resources. Trains nothing."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.job import JobConfig
from hpc_train.config.resources import Resources, parse_memory
from hpc_train.config.run_config import RunOptions
from hpc_train.data.memory import available_bytes
from hpc_train.errors import UserError
from hpc_train.planning.holdings import Choice, Exports, ModelSizes
from hpc_train.planning.job_models import JobModels
from hpc_train.planning.options import (
    Larger,
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
        more: Where none fits, what was found on more ranks.
        unexported: Where none fits, what would without exporters on as many ranks, or on fewer than `more`.
        rows: Of a batch that would fit as the job asks, where none does; batch: what it has.
        divides: Whether there are layers that a mesh divides.
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
    more: Larger | None
    unexported: Option | None
    rows: int | None
    divides: bool
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
    room, nodes = _memory_of(resources, ranks, memory)
    with ExitStack() as stack:
        return _planned(job, JobModels(job, code, stack), ranks, nodes, room)


def _asked(run: RunOptions, ranks: int) -> Option:
    """What the job file asks for; where so many ranks cannot have it, refused, and of ranks that can."""
    strategy, refused = strategy_of(run.strategy), None
    try:
        roles = strategy.roles(ranks, run)
    except UserError as error:
        refused, least = str(error), strategy.least_ranks(run)
        open_mesh = run.mesh is not None and run.mesh.data is None
        roles = strategy.roles(-(-ranks // least) * least if open_mesh else least, run)
    choice = Choice(roles.trainers, roles.model, run.shard_optimizer, roles.servers, int(roles.dedicated))
    return Option(choice, refused=refused, asked=True)


def _planned(job: JobConfig, models: JobModels, ranks: int, nodes: int, room: Memory) -> JobPlan:
    ways = _Ways(job, models, _asked(job.run, ranks), ranks, room)
    options = ways.options(ranks)
    own = next(one for one in options if one.asked)
    if not any(one.ranks for one in options):
        raise UserError(own.refused or "")
    best = first_that_fits(options, room)
    more = unexported = rows = None
    if best is None and room.nbytes is not None:
        more = ways.on_more()
        unexported = ways.without_exporters(more.fits)
        rows = rows_that_fit(own, room, models.rows) if own.ranks else None
    notes = in_pieces(ways.sizes) if ranks > 1 else []
    if ways.sizes.activations is None:
        notes.append("the model runs eagerly (run_eagerly): its activations are not known")
    return JobPlan(
        job.name,
        ranks,
        nodes,
        models.rows,
        ways.sizes,
        room,
        options,
        best,
        more,
        unexported,
        rows,
        ways.divides,
        ways.table,
        tuple(notes),
    )


class _Ways:
    """The ways to divide a job among `ranks` or more, which is `asked` for one of them.

    Attributes:
        sizes: Of the model as it is asked for, or where that cannot be, without a mesh. divides, table: see JobPlan.
    """

    def __init__(self, job: JobConfig, models: JobModels, asked: Option, ranks: int, room: Memory) -> None:
        self._job, self._models, self._asked, self._ranks, self._room = job, models, asked, ranks, room
        try:
            first = models.built(Choice(ranks) if asked.refused else asked.choice)
        except UserError:
            if asked.refused or asked.choice.model == 1:
                raise
            first = models.built(Choice(ranks))
        self.sizes, self.divides, self.table = first.sizes, first.divides, first.table
        self._refusals = first.refusals
        exporters = [exporter for spec in job.eval_specs() for exporter in spec.exporters]
        tables = {exporter.tables for exporter in exporters}
        served = any(exporter.serving_fn is not None for exporter in exporters)
        self._exports: list[Exports] = []  # auto: in shards where that does not fit in the model
        self._exports += ["whole"] if exporters and "shards" not in tables else []
        self._exports += ["shards"] if exporters and "whole" not in tables and not served else []

    def on_more(self, exports: bool = True) -> Larger:
        """What fits on twice as many ranks, or more."""
        own = self.options(self._ranks, exports=exports)
        return more_ranks(self._ranks, self._room, own, lambda more: self.options(more, near=True, exports=exports))

    def without_exporters(self, on_more: Option | None) -> Option | None:
        """What fits on as many ranks or more where the chief exports nothing; on fewer than `on_more` has."""
        if not self._exports:
            return None
        found = first_that_fits(self.options(self._ranks, exports=False), self._room)
        found = found or self.on_more(exports=False).fits
        return found if found and (on_more is None or found.choice.size < on_more.choice.size) else None

    def options(self, ranks: int, near: bool = False, exports: bool = True) -> tuple[Option, ...]:
        """Each way for so many ranks.

        Args:
            near: Only what ranks hold matters. exports: the chief exports what the job file says.
        """
        asked = self._asked.choice if self._asked.choice.size == ranks else None
        servers = asked.servers or 1 if asked else 1
        idle = min(self._asked.choice.idle, ranks - 1)
        ways = list(choices(ranks, self._refusals.sharded is None, self.divides, idle, servers))
        if asked is not None and asked not in ways:
            ways.insert(0, asked)
        found = [replace(self._option(way, near, exports), asked=way == asked) for way in ways]
        impossible = [self._asked] if self._asked.refused and ranks == self._ranks else []
        return distinct([*impossible, *found])

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
        process, places = self._models.process, self._exports if exports and self._exports else [None]
        found = [option(built.sizes, choice, pieces, halves, process, place) for place in places]
        return next((one for one in found if one.fits(self._room) is not False), found[-1])


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

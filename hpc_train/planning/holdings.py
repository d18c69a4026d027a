"""What a rank holds of a model, in bytes, by how the job is divided among ranks. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_pieces import buckets_of
from hpc_train.distributed.partition import VariableSpec, partition
from hpc_train.distributed.share import Averaged
from hpc_train.planning.traffic import Call

Exports = Literal["whole", "shards"] | None
"""Where the chief's exports have tables that ranks hold in parts: in the model, or beside it; None: there are none."""


@dataclass(frozen=True)
class VariableSizes:
    """A trainable variable, as the first rank of a mesh holds it.

    Attributes:
        whole: Elements of the variable in a model on one rank. elements: those that the rank holds.
        itemsize: Bytes of an element. slot: those that the optimizer keeps for each element.
        beside: Bytes that the optimizer keeps for the variable in other shapes than its own.
        averaged: Over which ranks its gradient is averaged.
        in_rows: Its gradient is the rows that a step needs, and never whole.
        undivided: A sharded optimizer leaves it whole: it has no axes, or a constraint.
    """

    path: str
    whole: int
    elements: int
    itemsize: int
    slot: int = 0
    beside: int = 0
    averaged: Averaged = "world"
    in_rows: bool = False
    undivided: bool = False

    @property
    def nbytes(self) -> int:
        """Of the elements that the rank holds."""
        return self.elements * self.itemsize

    @property
    def optimizer(self) -> int:
        """Bytes that an optimizer on one rank keeps for it."""
        return self.elements * self.slot + self.beside

    @property
    def is_cut(self) -> bool:
        """Whether the rank holds a part of it."""
        return self.averaged != "world"


@dataclass(frozen=True)
class ModelSizes:
    """A model, as the first rank of a mesh holds it.

    Attributes:
        variables: The trainable ones. state: bytes of the others. carried: of these, what ranks average each step.
        common: Bytes of the optimizer's variables that are no variable's (the iteration, the learning rate).
        activations: The most bytes that are there at once of a traced step, beside variables and gradients: an
            estimate. None: the step could not be traced.
        calls: What the layers exchange in a step.
    """

    variables: tuple[VariableSizes, ...]
    state: int = 0
    carried: int = 0
    common: int = 0
    activations: int | None = None
    calls: tuple[Call, ...] = ()

    @cached_property
    def parameters(self) -> int:
        """Bytes of the trainable variables."""
        return sum(variable.nbytes for variable in self.variables)

    @cached_property
    def whole(self) -> int:
        """Bytes of the trainable variables of a model on one rank."""
        return sum(variable.whole * variable.itemsize for variable in self.variables)

    @property
    def exported(self) -> int:
        """Bytes of a whole model, which an exporter needs."""
        return self.whole + self.state

    @property
    def tables(self) -> int:
        """Bytes of its tables that ranks hold in parts, which exports may have in shards."""
        return sum(variable.whole * variable.itemsize for variable in self.averaged("alone"))

    @cached_property
    def gradients(self) -> int:
        """Bytes of the gradients that are as large as their variables."""
        return sum(variable.nbytes for variable in self.variables if not variable.in_rows)

    @cached_property
    def optimizer(self) -> int:
        """Bytes of the optimizer, on a rank that has it for all that it holds."""
        return sum(variable.optimizer for variable in self.variables) + self.common

    def averaged(self, over: Averaged) -> list[VariableSizes]:
        """The variables whose gradients are averaged over these ranks."""
        return [variable for variable in self.variables if variable.averaged == over]


@dataclass(frozen=True)
class Choice:
    """One way to divide a job among `ranks` that train.

    Attributes:
        model: Ranks of the mesh's model axis. servers: parameter servers; 0: the job is synchronous.
        idle: Ranks that take no steps beside (a dedicated chief).
    """

    ranks: int
    model: int = 1
    shard_optimizer: bool = False
    servers: int = 0
    idle: int = 0

    @property
    def data(self) -> int:
        """Ranks of the mesh's data axis."""
        return self.ranks // self.model

    @property
    def size(self) -> int:
        """All ranks of the job."""
        return self.ranks + self.servers + self.idle

    @property
    def name(self) -> str:
        """In a word or two."""
        if self.servers or self.idle:
            return "async" if self.servers else "dedicated chief"
        parts = [f"mesh {self.data} x {self.model}"] if self.model > 1 else []
        parts += ["shard_optimizer" if self.model == 1 else "shard"] if self.shard_optimizer else []
        return " + ".join(parts) or "sync"

    @property
    def keys(self) -> dict[str, Any]:
        """What `run:` of a job file has for it."""
        if self.servers:
            return {"strategy": "async", **({"parameter_servers": self.servers} if self.servers > 1 else {})}
        if self.idle:
            return {"chief": "dedicated"}
        mesh = {"mesh": {"data": self.data, "model": self.model}} if self.model > 1 else {}
        return {**mesh, **({"shard_optimizer": True} if self.shard_optimizer else {})}

    def instead_of(self, asked: Choice) -> dict[str, Any]:
        """The same of a job file that has `asked`, with what of that is to go."""
        unset = {"strategy": "sync", "parameter_servers": 1, "chief": "train", "mesh": None, "shard_optimizer": False}
        return {key: unset[key] for key in asked.keys} | self.keys

    def line(self, asked: Choice) -> str:
        """The same as a line of a job file."""
        return f"run: {_flow(self.instead_of(asked))}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Holding:
    """What one rank holds, in bytes.

    Attributes:
        state: Variables that are not trained.
        exported: The model that is exported, beside one of which ranks hold parts, in the host's memory.
        snapshot: Room for copies, there, too. process: what Python, TensorFlow and its libraries take before
            there is a model, there, too.
        activations: None: not known, and counted as nothing.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    state: int = 0
    activations: int | None = None
    exported: int = 0
    snapshot: int = 0
    process: int = 0

    @property
    def model(self) -> int:
        """Variables of models."""
        return self.parameters + self.state + self.exported

    @property
    def on_device(self) -> int:
        """What lies on a GPU, where the rank has one."""
        return self.parameters + self.state + self.gradients + self.optimizer + (self.activations or 0)

    @property
    def total(self) -> int:
        """Of a rank without a GPU, all of it."""
        return self.on_device + self.exported + self.snapshot + self.process


@dataclass(frozen=True)
class _Held:
    """What a sharded optimizer is divided by of a variable."""

    shape: tuple[int, ...]
    dtype: str
    constraint: bool | None
    _hpc_train_averaged: Averaged


def pieces(variables: Sequence[VariableSizes], mesh: Mesh) -> list[int]:
    """How many elements of each variable a rank of a mesh has in its part of a sharded optimizer."""
    held = [_Held((v.elements,), f"uint{8 * v.itemsize}", v.undivided or None, v.averaged) for v in variables]
    found = [variable.elements for variable in variables]
    for bucket in buckets_of(held, mesh):
        for number, (_, start, stop) in zip(bucket.numbers, bucket.places, strict=True):
            found[number] = stop - start
    return found


def served(variables: Sequence[VariableSizes], ranks: int) -> list[list[int]]:
    """How many elements of each variable each of so many servers has: by server and variable."""
    specs = [VariableSpec((variable.elements,), np.dtype(f"V{variable.itemsize}")) for variable in variables]
    parts = partition(specs, ranks)
    found = [[0] * len(variables) for _ in range(ranks)]
    for rank, own in enumerate(found):
        for piece in parts.pieces(rank):
            own[piece.variable] = piece.stop - piece.start
    return found


def holdings(
    sizes: ModelSizes, choice: Choice, accumulates: bool = False, process: int = 0, exports: Exports = None
) -> list[Holding]:
    """What the chief holds and, where there are others, that one of them which holds most.

    Args:
        sizes: Of the first rank of the mesh that `choice` has.
        accumulates: A batch is computed in pieces, whose gradients are added up.
        exports: What the chief exports.
        process: What a process takes before there is a model.
    """
    if choice.servers:
        return [replace(one, process=process) for one in _with_servers(sizes, choice, accumulates)]
    shares = _optimizers(sizes, choice)
    gradients = sizes.gradients * (1 + accumulates)
    # The chief has a copy of what is the same on all ranks, for these, too.
    alike = 0 if _is_sharded(choice) else sum(v.optimizer for v in sizes.variables if not v.is_cut)
    parts = sum(variable.nbytes for variable in sizes.variables if variable.is_cut)
    chief, *others = [
        Holding(sizes.parameters, gradients, own, sizes.state, sizes.activations, process=process) for own in shares
    ]
    exported = sizes.exported - (sizes.tables if exports == "shards" else 0) if exports and parts else 0
    chief = replace(chief, exported=exported, snapshot=chief.parameters + chief.state + chief.optimizer)
    others = [replace(one, snapshot=parts + one.optimizer - sizes.common - alike) for one in others]
    if choice.idle:  # the chief copies what the first worker has, and takes no steps
        return [replace(chief, gradients=0, activations=None), replace(chief, exported=0)]
    return [chief, *others]


def _is_sharded(choice: Choice) -> bool:
    return choice.shard_optimizer and choice.ranks > 1


def _optimizers(sizes: ModelSizes, choice: Choice) -> list[int]:
    """Bytes of the optimizers of the first two ranks, or the only one; others have as many, or fewer."""
    ranks = range(min(choice.ranks, 2))
    if not _is_sharded(choice):
        return [sizes.optimizer for _ in ranks]
    return [
        sizes.common
        + sum(
            elements * variable.slot + variable.beside
            for elements, variable in zip(
                pieces(sizes.variables, Mesh(choice.data, choice.model, rank)), sizes.variables, strict=True
            )
        )
        for rank in ranks
    ]


def _with_servers(sizes: ModelSizes, choice: Choice, accumulates: bool) -> list[Holding]:
    """The chief, which is the first server and evaluates, and a worker or another server, whatever holds more.

    A server has its part of the parameters, two copies of it that workers read, a mailbox for each worker, and its part
    of the optimizer; the model is built there, too.
    """
    shares = served(sizes.variables, choice.servers)
    parts = [sum(n * v.itemsize for n, v in zip(own, sizes.variables, strict=True)) for own in shares]
    slots = [sum(n * v.slot for n, v in zip(own, sizes.variables, strict=True)) for own in shares]
    beside = sum(variable.beside for variable in sizes.variables) + sizes.common
    servers = [
        Holding(
            sizes.parameters + 3 * part,
            choice.ranks * part,
            own + beside,
            sizes.state,
            None,
            snapshot=sizes.parameters + sizes.state + sizes.optimizer if server == 0 else part + own,
        )
        for server, (part, own) in enumerate(zip(parts, slots, strict=True))
    ]
    gradients = sizes.gradients * (1 + accumulates)
    worker = Holding(sizes.parameters, gradients, 0, sizes.state, sizes.activations)
    return [servers[0], max([worker, *servers[1:]], key=lambda one: one.total)]

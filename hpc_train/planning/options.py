"""The ways to divide a job among its ranks: what each holds and sends, which fit, and how many ranks would do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hpc_train.distributed.collectives import MOST_ELEMENTS
from hpc_train.planning.holdings import Choice, Exports, Holding, ModelSizes, holdings
from hpc_train.planning.traffic import Call

DOUBLINGS = 6
"""How often the ranks are doubled to find how many would do."""


@dataclass(frozen=True)
class Memory:
    """What a rank may take.

    Attributes:
        nbytes: None: not known. where: whose it is, in words. device: a GPU's.
    """

    nbytes: int | None
    where: str
    device: bool = False


@dataclass(frozen=True)
class Option:
    """One way to divide the job.

    Attributes:
        ranks: The chief and, where there are others, that one of them which holds most; empty where it is refused.
        calls: What a rank exchanges in a step.
        refused: Why the job cannot be divided so.
        asked: Whether the job file has it so.
    """

    choice: Choice
    ranks: tuple[Holding, ...] = ()
    calls: tuple[Call, ...] = ()
    refused: str | None = None
    asked: bool = False

    def most(self, memory: Memory) -> Holding:
        """What the rank holds that needs most of such memory."""
        return max(self.ranks, key=lambda held: needed(held, memory))

    def fits(self, memory: Memory) -> bool | None:
        """Whether each rank has room; None where that is not known."""
        if memory.nbytes is None or not self.ranks:
            return None
        return needed(self.most(memory), memory) <= memory.nbytes

    @property
    def sent(self) -> int:
        """Bytes that a rank sends in a step."""
        return sum(call.sent for call in self.calls)


def needed(held: Holding, memory: Memory) -> int:
    """Bytes that a rank needs of such memory."""
    return held.on_device if memory.device else held.total


def choices(ranks: int, cuttable: bool, layers_divide: bool, idle: int = 0, servers: int = 1) -> Iterator[Choice]:
    """The ways to divide a job among so many ranks, those that change least first.

    Args:
        cuttable: Whether the optimizer can be divided; one that cannot is among them once.
        layers_divide: Whether there are layers that a mesh divides.
        idle: Ranks that take no steps beside those that train whole models (a dedicated chief); of others all train.
        servers: Of an asynchronous job.
    """
    if idle:
        yield Choice(ranks - idle, idle=idle)
    meshes = [1, *(n for n in range(2, ranks + 1) if ranks % n == 0)] if layers_divide else [1]
    for model in meshes:
        yield Choice(ranks, model)
        if ranks > 1 and (cuttable or model == 1):
            yield Choice(ranks, model, True)
    if ranks > servers:
        yield Choice(ranks - servers, servers=servers)


def distinct(options: Sequence[Option]) -> tuple[Option, ...]:
    """Without the sharded meshes of which ranks hold what they do without; but with what is asked for."""
    whole = {one.choice: one for one in options if not one.choice.shard_optimizer}

    def adds(one: Option) -> bool:
        if one.asked or one.choice.model == 1 or not one.choice.shard_optimizer:
            return True
        other = whole[replace(one.choice, shard_optimizer=False)]
        return (one.ranks, one.refused) != (other.ranks, other.refused)

    return tuple(one for one in options if adds(one))


def exchanges(sizes: ModelSizes, choice: Choice, halves: bool = False) -> tuple[Call, ...]:
    """What a rank of `choice` exchanges in a step; in an asynchronous job the busiest, in a step of each worker.

    Args:
        halves: Gradients in float32 are sent with 16 bits a number.
    """
    if choice.servers:
        most = max(1.0, choice.ranks / choice.servers)  # of a server, which all workers reach, or of a worker
        return (
            Call("pull", round(most * sizes.parameters), choice.size, "parameters"),
            Call("push", round(most * sizes.parameters) + sizes.carried, choice.size, "gradients"),
        )
    found = list(sizes.calls)
    for over, ranks in (("world", choice.ranks), ("data", choice.data)):
        own = sizes.averaged(over)  # type: ignore[arg-type]
        parameters = sum(variable.nbytes for variable in own)
        sent = sum(v.nbytes // 2 if halves and v.itemsize == 4 else v.nbytes for v in own)
        if ranks == 1 or not own:
            continue
        if choice.shard_optimizer:
            found.append(Call("reducescatter", sent, ranks, "gradients"))
            found.append(Call("allgather", parameters, ranks, "parameters"))
        else:
            found.append(Call("allreduce", sent, ranks, "gradients"))
    if choice.ranks > 1 and sizes.carried:
        found.append(Call("allreduce", sizes.carried, choice.ranks, "state"))
    return tuple(found)


def option(
    sizes: ModelSizes,
    choice: Choice,
    accumulates: bool = False,
    halves: bool = False,
    process: int = 0,
    exports: Exports = None,
) -> Option:
    """What `choice` comes to, for a model that the first rank of its mesh holds so; see holdings and exchanges."""
    held = holdings(sizes, choice, accumulates, process, exports)
    return Option(choice, tuple(held), exchanges(sizes, choice, halves))


def first_that_fits(options: Sequence[Option], memory: Memory) -> Option | None:
    """What the job asks for where that fits, else the first that does."""
    fit = [one for one in options if one.fits(memory)]
    return next((one for one in fit if one.asked), fit[0] if fit else None)


def more_ranks(ranks: int, memory: Memory, options_of: Callable[[int], Sequence[Option]]) -> Option | None:
    """What would fit on more ranks: twice as many, four times … up to 2^DOUBLINGS times. None: nothing does."""
    for power in range(1, DOUBLINGS + 1):
        if (found := first_that_fits(options_of(ranks << power), memory)) is not None:
            return found
    return None


def rows_that_fit(option: Option, memory: Memory, rows: int) -> int | None:
    """The largest batch of a rank that fits, where a smaller one helps; None where it does not."""
    held = option.most(memory)
    if memory.nbytes is None or not held.activations:
        return None
    room = memory.nbytes - (needed(held, memory) - held.activations)
    fit = room * rows // held.activations
    return fit if 0 < fit < rows else None


def in_pieces(sizes: ModelSizes) -> list[str]:
    """A sentence for each variable that has more elements than ranks exchange at once; rows of a table go by itself."""
    return [
        f"{v.path} has {v.elements:,} elements, more than 2^31 - 1, which ranks exchange at once: it goes in "
        f"{-(-v.elements // MOST_ELEMENTS)} pieces"
        for v in sizes.variables
        if v.elements > MOST_ELEMENTS and v.averaged != "alone"
    ]

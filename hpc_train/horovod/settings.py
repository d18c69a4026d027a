"""Arguments that Horovod's functions share: which are honoured, and what is said of the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from numbers import Real
from typing import Any

from hpc_train.arguments import check_type, not_allowed, shown
from hpc_train.errors import UserError


class Op(IntEnum):
    """How tensors of several ranks become one; the numbers are Horovod's."""

    Average, Sum, Adasum, Min, Max, Product = range(6)


Average, Sum, Adasum, Min, Max, Product = Op

EVERY_OP = tuple(Op)
OF_SLICES = (Op.Average, Op.Sum)
"""Those that tf.IndexedSlices can be reduced by."""
OF_TAPES = (Op.Average, Op.Sum, Op.Adasum)
OF_OPTIMIZERS = (Op.Average, Op.Sum)

_REFUSED = {
    "device_dense": "",
    "device_sparse": "",
    "device": "",
    "process_set": None,
    "session": None,
    "use_locking": False,
}
"""Arguments without an effect here, and the value that asks for none."""
_WAYS = {
    "process_set": "all ranks take part; leave it out",
    "session": "TensorFlow has no sessions any more; leave it out",
    "use_locking": "Keras 3 has no such option; leave it out",
}
_DEVICES = "Horovod chooses the device by how it was built; leave it out"


def refuse_unused(where: str, **given: Any) -> None:
    """UserError where one of Horovod's arguments asks for what is not offered."""
    for name, value in given.items():
        if value is not None and value != _REFUSED[name]:
            raise UserError(f"{where}: {name}: {shown(value)} has no effect here: {_WAYS.get(name, _DEVICES)}")


def op_of(where: str, op: Any, allowed: Sequence[Op] = EVERY_OP, average: bool | None = None) -> Op:
    """The operation that `op`, and the `average` of earlier versions, ask for.

    Raises:
        UserError: Both are given, or it is none of those allowed.
    """
    if average is not None:
        if op is not None:
            raise UserError(f"{where}: average and op: give op alone; average=True is hvd.Average, False is hvd.Sum")
        return Op.Average if average else Op.Sum
    if op is None:
        return Op.Average
    if isinstance(op, bool) or not isinstance(op, int) or op not in allowed:
        raise not_allowed(where, "op", op, ", ".join(f"hvd.{one.name}" for one in allowed))
    return Op(op)


def root_of(where: str, root_rank: Any, size: int) -> int:
    """The rank that others receive from; UserError where there is none of that number."""
    check_type(where, "root_rank", root_rank, int, f"a rank from 0 to {size - 1}")
    if not 0 <= root_rank < size:
        raise not_allowed(where, "root_rank", root_rank, f"a rank from 0 to {size - 1}")
    return int(root_rank)


def predivide_factors(where: str, factor: Any, op: Op, size: int) -> tuple[float, float]:
    """What gradients are multiplied by before and after their sum: for Average both together make 1 / size.

    Raises:
        UserError: The factor is no number above 0, or splits something else than an average.
    """
    check_type(where, "gradient_predivide_factor", factor, Real, "a number above 0")
    if not 0 < factor < float("inf"):
        raise not_allowed(where, "gradient_predivide_factor", factor, "a number above 0")
    if op is not Op.Average:
        if factor != 1:
            raise UserError(
                f"{where}: gradient_predivide_factor: {shown(factor)} splits the average; leave it out with "
                f"op=hvd.{op.name}"
            )
        return 1.0, 1.0
    return 1.0 / factor, factor / size


def groups_of(where: str, groups: Any, num_groups: Any = 0) -> int | list[list[Any]] | None:
    """How gradients are grouped: a number of groups, lists of variables, or None for one group of all.

    Raises:
        UserError: It is neither.
    """
    wanted = "a number of groups above 0, a list of lists of variables, or None"
    groups = num_groups if groups is None and num_groups else groups
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return groups
    if isinstance(groups, list | tuple) and all(isinstance(group, list | tuple) for group in groups):
        return [list(group) for group in groups]
    raise not_allowed(where, "groups", groups, wanted)


def split(count: int, groups: int) -> list[list[int]]:
    """0 to `count` - 1 in that many runs of equal length, as far as they divide; none is empty."""
    ends = [count * part // groups for part in range(groups + 1)]
    return [list(range(begin, end)) for begin, end in pairwise(ends) if end > begin]


def different(of_ranks: Sequence[Mapping[str, float]]) -> str:
    """What ranks do not have in common of named numbers, in words; empty where all have the same names."""
    names = {name for one in of_ranks for name in one}
    lacking = {rank: sorted(names - set(one)) for rank, one in enumerate(of_ranks) if names - set(one)}
    return "; ".join(f"rank {rank} has no {', '.join(missing)}" for rank, missing in lacking.items())


def warm_up_share(epoch: float, warmup_epochs: float, ranks: int) -> float:
    """What part of the rate there is after `epoch` epochs: 1 / ranks at 0, 1 after `warmup_epochs`."""
    return (epoch * (ranks - 1) / warmup_epochs + 1) / ranks

"""Checks World's collective methods; run on any number of ranks."""

from unittest.mock import patch

import numpy as np

from hpc_train.distributed.startup import join_world
from hpc_train.errors import RankError, UserError

world = join_world()
last = world.size - 1

assert world.broadcast({"rank": world.rank, "text": "ü"}) == {"rank": 0, "text": "ü"}
assert world.all_gather(["x"] * world.rank) == [["x"] * rank for rank in range(world.size)]
gathered = world.gather({"text": "ü" * world.rank})
assert gathered == ([{"text": "ü" * rank} for rank in range(world.size)] if world.is_chief else None)
for ranks in ({last}, {0}, set(range(world.size)), set(range(1, world.size))):
    found = world.first(["of", world.rank] if world.rank in ranks else None)
    assert found == (["of", min(ranks)] if ranks else None), (ranks, found)
assert world.first(None) is None
assert world.first(0 if world.rank == last else None) == 0, "a value, though it is false"
assert world.sum(np.arange(3.0) + world.rank).tolist() == [i * world.size + sum(range(world.size)) for i in range(3)]
assert world.on_chief(lambda: world.rank + 5) == 5
assert world.each(lambda: world.rank * 2) == world.rank * 2
arrays = [np.full((2, 3), world.rank, np.uint32), np.array(world.rank + 0.5, np.float16), np.zeros((0,))]
world.broadcast_arrays(arrays)
assert arrays[0].tolist() == [[0, 0, 0]] * 2
assert arrays[1] == 0.5

own = np.full((2, 2), world.rank, np.int64)
stacked = world.gather_arrays(own)
assert (stacked is None) == (not world.is_chief)
own[:] = -1
world.scatter_arrays(stacked[::-1].copy() if stacked is not None else None, own)
assert (own == last - world.rank).all(), "the reverse of gather_arrays, here in reverse order"
with patch("hpc_train.distributed.world.PIECE_BYTES", 12):  # of more bytes than one call takes
    rows = world.gather_arrays(np.arange(8, dtype=np.int64) + world.rank)
    assert rows is None or (rows == np.arange(8) + np.arange(world.size)[:, None]).all()
alike = world.split(world.rank % 2)
assert (alike.size, alike.rank) == (len(range(world.rank % 2, world.size, 2)), world.rank // 2)
assert alike.broadcast(world.rank) == world.rank % 2
alike.free()


def fails_on_last() -> None:
    if world.rank == last:
        raise KeyError("lost")


def refuses_on_last() -> None:
    if world.rank == last:
        raise UserError("not that")


for action, own, other in ((fails_on_last, KeyError, RankError), (refuses_on_last, UserError, UserError)):
    try:
        world.each(action)
    except Exception as error:
        assert type(error) is (own if world.rank == last else other), repr(error)
        if type(error) is RankError:
            assert f"rank {last}: KeyError" in str(error)
    else:
        raise AssertionError("no error reached this rank")


def fails_but_on_chief() -> int:
    """All but the chief, each by an error of its own."""
    if world.rank > 0:
        raise (UserError if world.rank == 1 else OSError)(f"of rank {world.rank}")
    return 5


try:
    assert world.each(fails_but_on_chief) == 5 and world.size == 1
except (UserError, OSError) as error:
    assert str(error) == "of rank 1", "the lowest rank's, on all ranks"
    assert type(error) is UserError and world.knows_of(error) and not world.knows_of(UserError("of rank 1"))
print(f"rank {world.rank} of {world.size} is fine")

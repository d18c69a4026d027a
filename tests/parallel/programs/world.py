"""Checks World's collective methods; run on any number of ranks."""

import numpy as np

from hpc_train.distributed.startup import join_world
from hpc_train.errors import RankError, UserError

world = join_world()
last = world.size - 1

assert world.broadcast({"rank": world.rank, "text": "ü"}) == {"rank": 0, "text": "ü"}
assert world.all_gather(["x"] * world.rank) == [["x"] * rank for rank in range(world.size)]
assert world.sum(np.arange(3.0) + world.rank).tolist() == [i * world.size + sum(range(world.size)) for i in range(3)]
assert world.on_chief(lambda: world.rank + 5) == 5
assert world.each(lambda: world.rank * 2) == world.rank * 2
arrays = [np.full((2, 3), world.rank, np.uint32), np.array(world.rank + 0.5, np.float16), np.zeros((0,))]
world.broadcast_arrays(arrays)
assert arrays[0].tolist() == [[0, 0, 0]] * 2
assert arrays[1] == 0.5


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
print(f"rank {world.rank} of {world.size} is fine")

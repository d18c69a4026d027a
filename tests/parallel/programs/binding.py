"""Every thread of a rank runs where the rank is bound to, after MPI and Horovod have started theirs."""

import os
import sys

from hpc_train.distributed.startup import join_world
from hpc_train.distributed.topology import cpu_list

world = join_world()
if world.size > 1:
    world.horovod()
masks = set()
for thread in os.listdir("/proc/self/task"):
    try:
        masks.add(frozenset(os.sched_getaffinity(int(thread))))
    except ProcessLookupError:
        continue
found = world.binding
own = cpu_list(found.cpus) if found.by else frozenset(os.sched_getaffinity(0))
assert frozenset(os.sched_getaffinity(0)) == own, (os.sched_getaffinity(0), found)
assert masks == {own}, (masks, found)
every = world.all_gather([found.by, found.cpus, found.why, world.cores])
if world.is_chief:
    print(every, world.notes, file=sys.stdout, flush=True)

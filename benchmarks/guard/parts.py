"""The parts: each measures a little of what another benchmark measures in full, with that one's code and targets.

Modules are imported where they are used: what one part lacks does not keep the others from running.
"""

from __future__ import annotations

import importlib.util
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.launch import check_mpirun, here, slots
from support.page import Target
from support.records import Found, Record
from support.results import Results
from support.usage import UsageError

RANKS = 2
"""That train, or exchange something, where there are several."""
ALLREDUCE_BYTES = 1 << 24
"""The largest; the smallest is the one from which on the target holds."""
INPUT_MEGABYTES = 64
LAYOUTS = ("contiguous", "gzip")
"""Those that targets speak of."""
STATE = "67 MB"
PARAMETERS = ("8 MB", "67 MB")

Measure = Callable[[Path, Results], list[Target]]
"""Measures in an empty folder, adds the records to the results, and returns the targets of that benchmark."""


@dataclass(frozen=True)
class Measured:
    """What a part found.

    Attributes:
        targets: Those that something was measured for.
        left_out: What was not measured, by name, and why; by the part's own name where that is all of it.
        secs: That it took. taken: cores that other processes took meanwhile.
    """

    records: Sequence[Record] = ()
    targets: Sequence[Target] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    secs: float = 0.0
    taken: float = 0.0

    def missed(self) -> Iterator[tuple[Target, str, str]]:
        """All that falls short: the target, and the name and the value of what does not reach it."""
        for target in self.targets:
            yield from ((target, name, value) for name, value, reached in target.measured if not reached)

    @property
    def reached(self) -> bool:
        """Everything was measured, and nothing falls short."""
        return not self.left_out and not any(self.missed())

    @property
    def disturbed(self) -> bool:
        """Other processes took more than the cores that this one may not use anyway, and a quarter of one."""
        return self.taken > (os.cpu_count() or 1) - len(os.sched_getaffinity(0)) + 0.25


@dataclass(frozen=True)
class Part:
    """A part.

    Attributes:
        script: The benchmark that measures all of it, with a report.
        packages: That it cannot do without. mpi: whether it starts ranks.
        asked_for: It takes too long for the three minutes, and runs only where it is named.
    """

    measure: Measure
    script: str
    packages: tuple[str, ...] = ()
    mpi: bool = True
    asked_for: bool = False

    def check(self) -> None:
        """Sees that it can run here, as far as that can be seen from outside.

        Raises:
            UsageError: It cannot.
        """
        gone = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if gone:
            raise UsageError(f"{' and '.join(gone)}: not installed")
        if self.mpi:
            check_mpirun()


def too_few_cores(ranks: int) -> str:
    """Why ranks that would have to share cores do not run: their figures would say nothing of the package."""
    return f"needs {ranks} cores, and this process may use {slots()}"


def training(folder: Path, results: Results) -> list[Target]:
    """Pairs in one process: the plain loop and Keras fit on one rank, plain Horovod with the same flags on two."""
    from peers.measuring import measure_all, plan
    from peers.models import CNN, MLP, write_data
    from peers.page import targets
    from peers.settings import FULL

    settings = replace(FULL, pairs=10, block_secs=0.25, first_secs=0.5)
    units = [
        *plan([MLP], [1, RANKS], ["same-flags"]),
        *plan([CNN], [1], ["fit"]),
        *plan([CNN], [RANKS], ["same-flags"]),
    ]
    write_data(folder, [MLP, CNN], settings.rows)
    measure_all([unit for unit in units if unit.ranks <= slots()], folder, settings, results)
    for unit in units:
        if unit.ranks > slots():
            results.leave_out(unit.name, too_few_cores(unit.ranks))
    return targets(Found(results.records))


def allreduce(folder: Path, results: Results) -> list[Target]:
    """Horovod's allreduce against MPI's on this node, from 1 to 16 MiB."""
    from collective.page import FROM_BYTES, targets
    from collective.plan import FULL, runs, sizes_between
    from collectives import measure_all

    if slots() < RANKS:
        raise UsageError(too_few_cores(RANKS))
    settings = replace(FULL, sizes=sizes_between(FROM_BYTES, ALLREDUCE_BYTES, 4), limit_secs=60.0)
    args = Namespace(gpu=False, dir=folder)
    measure_all(runs(["node"], [RANKS], ["allreduce"], 1, RANKS), settings, args, {}, results)
    return targets(Found(results.records))


def input_pipeline(folder: Path, results: Results) -> list[Target]:
    """Rows of 3 KB in the page cache."""
    import tensorflow as tf
    from input_pipeline import STEP_ROWS, settings_of
    from inputs.cases import measure_warm
    from inputs.data import ROW_KINDS, write
    from inputs.page import targets

    tf.config.threading.set_intra_op_parallelism_threads(1)
    settings = settings_of(Namespace(quick=False, megabytes=INPUT_MEGABYTES, rounds=1))
    settings = replace(settings, limit_secs=0.05)
    kind = next(kind for kind in ROW_KINDS if kind.name == STEP_ROWS)
    data = write(folder / "rows", kind, settings.megabytes, LAYOUTS)
    results.add(kind.name, measure_warm(data, settings))
    return targets(Found(results.records), settings)


def checkpoint(folder: Path, results: Results) -> list[Target]:
    """The stall of a save of 67 MB, and what a save in flight costs the steps."""
    from checkpoint import SIZES, measure_all
    from checkpoints.cases import Settings
    from checkpoints.page import targets

    size = next(size for size in SIZES if size.name == STATE)
    settings = Settings((replace(size, rounds=2),), step_size=STATE, step_secs=1.0, step_rounds=1)
    measure_all(settings, folder, results)
    return targets(Found(results.records), [STATE])


def server(folder: Path, results: Results) -> list[Target]:
    """Push and pull on one node with one and with two servers, and what a server that waits takes."""
    from parameter_server import measure_all
    from parameter_servers.page import targets
    from parameter_servers.settings import FULL

    node = replace(FULL.node, sizes=PARAMETERS, run_bytes=128 * 10**6, rounds=2, rest_secs=0.5)
    measure_all(replace(FULL, node=node), ["node"], folder, results)
    return targets(Found(results.records))


def emulated(folder: Path, results: Results) -> list[Target]:
    """Eight ranks that wait instead of computing, however few cores there are, against one."""
    from scale.jobs import FULL, MEMORY, SYNC, WEAK, plan_variable
    from scale.measuring import Curve, measure_all
    from scale.page import EMULATED_BYTES, EMULATED_STEP_MS, EMULATED_WORKERS, targets

    settings = replace(FULL, secs=2.0, warm_up_secs=1.0, passes=1, limit_secs=120.0)
    points = ((SYNC, 1), (SYNC, EMULATED_WORKERS))
    curve = Curve(WEAK, "emulated", "emulated model", MEMORY, 32, points, EMULATED_STEP_MS, EMULATED_BYTES)
    measure_all([curve], settings, folder, here(plan_variable(folder)), results)
    return targets(Found(results.records))


PARTS: Mapping[str, Part] = {
    "training": Part(training, "overhead.py"),
    "allreduce": Part(allreduce, "collectives.py", ("horovod", "mpi4py")),
    "input": Part(input_pipeline, "input_pipeline.py", mpi=False),
    "checkpoint": Part(checkpoint, "checkpoint.py", mpi=False),
    "server": Part(server, "parameter_server.py", ("mpi4py",)),
    "emulated": Part(emulated, "scaling.py", ("horovod", "mpi4py"), asked_for=True),
}
DEFAULT = tuple(name for name, part in PARTS.items() if not part.asked_for)

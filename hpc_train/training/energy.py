"""What nodes have used by the end of a run, and what of its data was on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hpc_train.distributed.world import World
from hpc_train.engine.rank_energy import RankEnergy
from hpc_train.engine.run_log import RunReports
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.resilience.signals import JobStopped
from hpc_train.telemetry.reporter import Reporter, by_rank


@contextmanager
def told_at_the_end(
    world: World,
    job: TrainingJob,
    energy: RankEnergy,
    reporter: Reporter | None,
    staged: Callable[[], Mapping[str, float]] = dict,
) -> Iterator[None]:
    """The chief hears what each node has used in the whole run, once that is over or was stopped. Collective.

    Ranks that leave apart, since one may be lost, have left word of it, if they were quick enough.

    Args:
        reporter: The chief's. The report, which came before, is written again where another node has told more.
        staged: What this rank tells of its copies of shards.
    """
    try:
        yield
    except JobStopped:  # on all ranks
        _tell(world, {**energy.taken(), **staged()}, reporter)
        raise
    if _tell(world, {**energy.taken(), **staged()}, reporter) and reporter is not None:
        RunReports(reporter, job.config).page(job.job_dir, again=True)


def _tell(world: World, own: Mapping[str, float], reporter: Reporter | None) -> bool:
    """Whether other nodes than the chief's may have told anything. Collective, unless the ranks leave apart."""
    taken = (World.alone() if world.apart else world).gather(own)
    if reporter is None or taken is None:
        return False
    told = by_rank(taken, 0)
    reporter.note_energy(told)
    reporter.note_staged(told)
    reporter.tell_energy()
    reporter.status.write()
    return world.apart or any(taken[1:])

"""What nodes have used by the end of a run."""

from __future__ import annotations

from hpc_train.distributed.world import World
from hpc_train.engine.rank_energy import RankEnergy
from hpc_train.engine.run_log import RunReports
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.telemetry.reporter import ENERGY, Reporter


def last_word(world: World, job: TrainingJob, energy: RankEnergy, reporter: Reporter | None) -> None:
    """Lets the chief know what each node has used in the whole run, which is over. Collective.

    Args:
        reporter: The chief's. The report, which came before, is written again where another node has told more.
    """
    taken = world.gather(energy.taken().get(ENERGY))
    if reporter is None or taken is None:
        return
    reporter.energy.note(taken)
    reporter.tell_energy()
    reporter.status.write()
    if any(joules is not None for joules in taken[1:]):
        RunReports(reporter, job.config).page(job.job_dir, again=True)

"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass

BENCHMARK = "scaling"
SYNC, ASYNC, DEDICATED = "sync", "async", "dedicated chief"
WAYS = {"sync": SYNC, "async": ASYNC, "dedicated": DEDICATED}
"""By their names on the command line."""
WEAK, STRONG = "weak", "strong"
MEMORY, HDF5, OWN = "memory", "hdf5", "own job"
RECORD_STEPS = 20
"""Between two records of a job, which tell where its time went."""
SHARDS = 4
SHARD_ROWS = 4096
"""Of the HDF5 data, or as many as 256 MB hold."""
SHARD_BYTES = 256 * 10**6


@dataclass(frozen=True)
class Settings:
    """Of each job.

    Attributes:
        secs: Measured in each, after warm_up_steps and warm_up_secs. least_steps: at least so many.
        passes: Over all points of a curve: there, back again, and so on; one repeat each.
        limit_secs: For one job.
    """

    secs: float
    least_steps: int
    warm_up_steps: int
    warm_up_secs: float
    passes: int
    limit_secs: float


FULL = Settings(secs=4.0, least_steps=5, warm_up_steps=3, warm_up_secs=1.5, passes=4, limit_secs=600.0)
QUICK = Settings(secs=0.3, least_steps=3, warm_up_steps=2, warm_up_secs=0.0, passes=1, limit_secs=180.0)

"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass

from collective.ways import sizes_between


@dataclass(frozen=True)
class Settings:
    """Of all runs.

    Attributes:
        sizes: Bytes. rounds: A B B A rounds, two repeats each. repeat_secs: A repeat takes about so long, and one
            operation at least. limit_secs: For one mpirun.
    """

    sizes: tuple[int, ...]
    rounds: int
    repeat_secs: float
    limit_secs: float


FULL = Settings(sizes_between(4, 1 << 28, 4), rounds=3, repeat_secs=0.03, limit_secs=900.0)
QUICK = Settings((4, 4096, 1 << 20), rounds=1, repeat_secs=0.005, limit_secs=120.0)

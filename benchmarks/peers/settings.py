"""What is compared, by name, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass

BENCHMARK = "overhead"
BATCH = 64
"""Rows a rank and step."""
MOMENTUM = 0.9
LOSS_KEPT = 0.95
"""A way whose loss has not fallen below this part of its first one does not train: its figures mean nothing."""

OURS = "hpc_train"
DEFAULT_FLAGS = "plain Horovod, default flags"
SAME_FLAGS = "plain Horovod, the same flags"
PLAIN = "plain loop, no allreduce"
FIT = "Keras fit"
DISTRIBUTE = "tf.distribute, MultiWorkerMirrored"
ESTIMATOR = "tf.estimator, parameter server"
NO_EXCHANGE = "ranks that exchange nothing"
"""Ways to train. PLAIN is the loop of SAME_FLAGS on one rank; NO_EXCHANGE is it on several that run at once, each by
itself: what the cores allow it."""

START_SECS = 60.0
SLOWER = 4
"""A rival may take so many times as long as ours."""
PATIENCE = 3
"""A process may take so many times as long as it should."""

PEERS = ("horovod", "same-flags", "fit", "distribute", "estimator")
"""On the command line: DEFAULT_FLAGS with weak scaling, SAME_FLAGS, FIT, DISTRIBUTE, ESTIMATOR."""


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        rows: Of the training data.
        pairs: Blocks of ours and as many of a rival in one process; block_secs: that one of ours takes, about.
        passes: Over all ways of a group, each in a process of its own, there and back again in turn: A B, B A.
        turn_secs: That ours measures for in a process of its own; the others make as many steps.
        first_steps: Of each process, which are not counted; first_secs: the same, whichever is more.
        thin: Each kind of measurement once, on one of the models.
    """

    rows: int
    pairs: int
    block_secs: float
    passes: int
    turn_secs: float
    first_steps: int
    first_secs: float
    thin: bool = False

    @property
    def limit_secs(self) -> float:
        """For one process that measures for `turn_secs`."""
        return PATIENCE * (START_SECS + SLOWER * (self.turn_secs + self.first_secs))


FULL = Settings(
    rows=8_192,
    pairs=24,
    block_secs=0.5,
    passes=4,
    turn_secs=4.0,
    first_steps=12,
    first_secs=1.0,
)
QUICK = Settings(
    rows=1_024,
    pairs=2,
    block_secs=0.1,
    passes=1,
    turn_secs=0.3,
    first_steps=12,
    first_secs=0.0,
    thin=True,
)

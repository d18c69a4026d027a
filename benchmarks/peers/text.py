"""The report's text: who is compared, and how it was measured."""

from __future__ import annotations

from support.report import Table

from peers.contestants import Kind
from peers.jobs import SHUFFLE
from peers.settings import (
    DEFAULT_FLAGS,
    DISTRIBUTE,
    ESTIMATOR,
    FIT,
    LOSS_KEPT,
    NO_EXCHANGE,
    OURS,
    PLAIN,
    SAME_FLAGS,
    Settings,
)

HOW = (
    "All models train in float32 with Keras's SGD and momentum (tf.estimator with TensorFlow's own), on rows that they "
    f"can learn from: a way whose loss does not fall below {LOSS_KEPT:.0%} of its first one is not compared. "
    "TensorFlow has one thread on each rank in both of its pools, the one that computes within an operation and the "
    "one that runs operations side by side, in tf.distribute's processes, too. Only in those of tf.estimator the "
    "second pool is TensorFlow's own, with as many threads as there are cores.",
    "Input is cheap on both sides, and as cheap as it gets on theirs: this package reads HDF5 shards of float32 rows "
    f"from the page cache (shuffle: {SHUFFLE}), while the others take batches that were cut beforehand and lie in "
    "memory out of a tf.data pipeline that prefetches two of them.",
    "hpc_train is `hpc-train train job.yaml` as users start it: with its input, its checks of loss and gradients, its "
    "watchdog, status, metrics and progress lines. A hook of the job takes the time.",
)

PEERS_TABLE = Table(
    ("Way", "Program", "Settings"),
    [
        (OURS, "hpc-train train job.yaml under mpirun", "its own"),
        (
            DEFAULT_FLAGS,
            "tf.function with compute_loss, grouped_allreduce, optimizer.apply; a Python loop over the dataset",
            "Horovod's and MPI's defaults",
        ),
        (SAME_FLAGS, "the same", "those that this package makes by itself"),
        (PLAIN, "the same without the allreduce and without MPI, on one rank", ""),
        (NO_EXCHANGE, "the same on several ranks that run at once, each by itself", ""),
        (
            FIT,
            "model.fit with a tf.data pipeline; no metrics, no progress bar",
            "jit_compile=False: faster on a processor",
        ),
        (
            DISTRIBUTE,
            "MultiWorkerMirroredStrategy, strategy.run in a tf.function, a loop of its own",
            "CommunicationImplementation.RING; one thread in both pools",
        ),
        (
            ESTIMATOR,
            "train_and_evaluate; chief and workers train, one more process is the server; asynchronous",
            "TensorFlow 2.15 in an environment of its own; one thread within an operation, the second pool its own",
        ),
    ],
    names=3,
)


def ways_text(kind: Kind, settings: Settings) -> tuple[str, ...]:
    """How the ways of units of a kind were measured."""
    if kind == "one process":
        return (
            f"Blocks of about {settings.block_secs:g} s of the job's own loop and of as many steps of the rival's are "
            "made in turn by one process on each rank: same threads, same Horovod and MPI with the same settings, "
            "fractions of a second apart. A hook of the job runs the rival after some step, with a model, an optimizer "
            "and batches of its own; the job's clock stands still meanwhile. The order changes each time (A B, B A), "
            f"{settings.pairs} pairs; a ratio is the median of the pairs' ratios.",
            "One step in ten, and at least one, is not counted after each change: the other one has filled the caches "
            "with its own weights. On one rank, neither runs an allreduce: with one over itself the rival would be "
            "slower.",
            "fit is timed from the beginning of one of its batches to that of another, so without what it does before "
            "and after them.",
        )
    if kind == "other programs":
        return (
            "Each repeat is a run of its own, in turn (A B, B A), of as many steps as hpc_train makes in "
            f"{settings.turn_secs:g} s, measured inside the program after its first steps "
            f"({settings.first_secs:g} s and {settings.first_steps} steps at least). tf.estimator's examples a second "
            "are those of all workers, by the growth of the global step.",
            "Ranks that exchange nothing are the plain loop, each rank by itself at once: what the cores allow it. "
            "That is no bound on hpc_train, whose updates of the weights are not Keras's. It tells how much of a ratio "
            "to default flags can come from the exchange.",
        )
    return (
        "Examples a second of all ranks, as a part of so many times those of one rank that runs no allreduce; from the "
        "same runs as above, in turn. One rank has the whole machine to itself; “no exchange” are as many ranks as "
        "above that run at once without telling each other anything: what is missing to 1 there is what they take from "
        "each other by sharing cores, caches and memory, and no way to average gradients can give it back.",
        "Cores are CPU seconds a second of the first rank. With one thread in both of TensorFlow's pools a rank uses "
        "about one core, alone and beside others; more than one is what input, Horovod and MPI do meanwhile.",
    )

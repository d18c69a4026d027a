"""The linear scaling rule for the learning rate of big batches. Pure."""

from __future__ import annotations

from numbers import Real

from hpc_train.arguments import check_type, checked_arguments, not_allowed


@checked_arguments
def scaled_learning_rate(base_rate: float, batch_size: int, ranks: int = 1, base_batch: int = 256) -> float:
    """The learning rate for a global batch of `batch_size` x `ranks` rows: `base_rate` times how much larger it is.

    "When the minibatch size is multiplied by k, multiply the learning rate by k": Goyal et al., "Accurate, Large
    Minibatch SGD: Training ImageNet in 1 Hour", arXiv:1706.02677, section 2.1. It is a rule for SGD, and
    needs a warm-up (WarmUp).

    Args:
        base_rate, base_batch: The rate that is right for a global batch of so many rows.
        batch_size: Rows that a rank gives to one step (HDF5Input.batch_size).
        ranks: Those that train.

    Raises:
        UserError: An argument that is no number above 0.
    """
    given = {"base_rate": base_rate, "batch_size": batch_size, "ranks": ranks, "base_batch": base_batch}
    for name, value in given.items():
        check_type("scaled_learning_rate", name, value, Real, "a number above 0")
        if not value > 0:
            raise not_allowed("scaled_learning_rate", name, value, "a number above 0")
    return float(base_rate) * batch_size * ranks / base_batch

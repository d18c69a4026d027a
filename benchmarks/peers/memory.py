"""Whether a model fits into this machine's memory."""

from __future__ import annotations

from collections.abc import Sequence

from support.usage import UsageError

from hpc_train.data.loading.memory import available_bytes
from peers.models import PARAMETERS

PROCESS_BYTES = 800 * 10**6
"""Of a rank with TensorFlow and the rows, without any parameters."""
COPIES = 12
"""Of the parameters: weights, momentum, gradients, averages and fusion buffer, of ours and a rival; a checkpoint."""


def needed_bytes(model: str, ranks: int) -> int:
    """Memory that so many ranks take while they train `model` and a rival's, about. Pure."""
    return round(ranks * (PROCESS_BYTES + COPIES * 4 * PARAMETERS[model]))


def check_memory(models: Sequence[str], ranks: int, available: int | None = None) -> None:
    """Sees that each model fits into `available` bytes; by default into what this node, or this job on it, has left.

    Raises:
        UsageError: One does not.
    """
    available = available_bytes() if available is None else available
    for model in models:
        needed = needed_bytes(model, ranks)
        if needed > available:
            raise UsageError(
                f"--models: {model} on {ranks} ranks needs about {needed / 1e9:.1f} GB of memory, and "
                f"{available / 1e9:.1f} GB are free; give fewer --ranks, or smaller --models"
            )

"""What stands in for a GPU in ranks of tests: what does in those of the benchmarks."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from tests.support import REPOSITORY

_until_the_end = ExitStack()


def stand_in_for_gpu() -> None:
    """Has hpc_train take a second device of the processor for a GPU, for as long as the process lasts.

    Called before TensorFlow's first operation.
    """
    sys.path.append(str(REPOSITORY / "benchmarks"))
    from support.second_device import second_device

    _until_the_end.enter_context(second_device())

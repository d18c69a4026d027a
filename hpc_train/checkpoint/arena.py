"""Arena: memory of fixed size into which a job's state is copied, so that training can go on while it is written."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.tensors import places


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Arena:
    """Memory for one array of each spec, by name.

    Made once: fresh pages for each snapshot would cost several times the copy. The pages are touched here.

    Attributes:
        arrays: Views of the memory, C-contiguous, each aligned to 64 bytes.
        nbytes: What they hold.
    """

    def __init__(self, specs: Mapping[str, ArraySpec]) -> None:
        offsets, end = places([spec.nbytes for spec in specs.values()])
        memory = mmap.mmap(-1, max(end, 1))
        with suppress(OSError, AttributeError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        flat = np.frombuffer(memory, np.uint8)
        flat[:] = 0
        self.nbytes = sum(spec.nbytes for spec in specs.values())
        self.arrays = {
            name: flat[offset : offset + spec.nbytes].view(spec.dtype).reshape(spec.shape)
            for (name, spec), offset in zip(specs.items(), offsets, strict=True)
        }

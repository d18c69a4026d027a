"""Rows to read: images of three sizes that compress about as real ones do, with a label each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SHARDS = 4
ALIGNMENT = 64
CLASSES = 10


@dataclass(frozen=True)
class RowKind:
    """Rows of one size.

    Attributes:
        shape: Of one image, uint8 `[height, width, channels]`.
        batch: Rows a batch, as one would train with.
        grid, contrast, noise: The image: random colours on a grid x grid lattice, interpolated, with the contrast
            raised until part of it saturates, plus noise. Chosen so that gzip shrinks them as it does real ones.
    """

    name: str
    shape: tuple[int, int, int]
    batch: int
    grid: int
    contrast: int
    noise: int

    @property
    def image_bytes(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Image and int64 label."""
        return self.image_bytes + 8

    @property
    def batch_bytes(self) -> int:
        return self.batch * self.row_bytes

    def count(self, megabytes: float) -> int:
        """Rows in about so many megabytes, full batches in each shard."""
        return SHARDS * self.batch * max(1, round(megabytes * 1e6 / (SHARDS * self.batch_bytes)))

    def images(self, rows: int, seed: int = 0) -> np.ndarray:
        """uint8 `[rows, height, width, channels]`, in memory aligned as memcpy likes it best."""
        random = np.random.default_rng(seed)
        height, width, channels = self.shape
        lattice = np.arange(self.grid)
        weights = np.maximum(0, 1 - np.abs(np.linspace(0, self.grid - 1, height)[:, None] - lattice)).astype(np.float32)
        out = aligned_empty((rows, *self.shape), np.uint8)
        piece = max(1, (2 << 20) // self.image_bytes)
        for first in range(0, rows, piece):
            n = min(piece, rows - first)
            colours = random.uniform(-self.contrast, 255 + self.contrast, (n, self.grid, self.grid * channels))
            tall = np.matmul(weights, colours.astype(np.float32)).reshape(n * height, self.grid, channels)
            image = np.matmul(weights, tall).reshape(n, height, width, channels)
            image += random.integers(-self.noise, self.noise + 1, image.shape, dtype=np.int8)
            out[first : first + n] = np.clip(image, 0, 255, out=image)
        return out

    def labels(self, rows: int, seed: int = 0) -> np.ndarray:
        """int64 `[rows]`."""
        labels = aligned_empty((rows,), np.int64)
        labels[:] = np.random.default_rng(seed).integers(0, CLASSES, rows)
        return labels


ROW_KINDS = (
    RowKind("784 B", (28, 28, 1), batch=256, grid=4, contrast=360, noise=12),
    RowKind("3 KB", (32, 32, 3), batch=256, grid=4, contrast=110, noise=6),
    RowKind("150 KB", (224, 224, 3), batch=32, grid=6, contrast=260, noise=3),
)


def aligned_empty(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An array that starts at a multiple of 64 bytes: elsewhere a copy can take three times as long."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    array: np.ndarray = raw[start : start + size].view(dtype).reshape(shape)
    return array

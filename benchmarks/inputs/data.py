"""Rows to read: images of three sizes that compress about as real ones do, as HDF5 in five layouts and as TFRecord."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

SHARDS = 4
ALIGNMENT = 64
CLASSES = 10
LAYOUTS = ("contiguous", "chunked", "gzip", "lzf", "blosc")
CHUNK_BYTES = 256 << 10


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


@dataclass
class Data:
    """Rows in memory and in files.

    Attributes:
        paths: Shards by layout; only the layouts that can be written here.
        missing: Why a layout is not there.
        compression: Stored bytes per byte of image, inverted: 1.8 is "1.8 times smaller".
    """

    kind: RowKind
    images: np.ndarray
    labels: np.ndarray
    paths: dict[str, list[str]] = field(default_factory=dict)
    tfrecords: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    compression: dict[str, float] = field(default_factory=dict)

    def keep(self, layout: str) -> None:
        """Removes all files but those of `layout`."""
        gone = [*self.tfrecords, *(p for other, paths in self.paths.items() if other != layout for p in paths)]
        for path in gone:
            Path(path).unlink()
        self.paths = {layout: self.paths[layout]}
        self.tfrecords = []

    @property
    def steps(self) -> int:
        """Batches in one pass."""
        return len(self.images) // self.kind.batch

    @property
    def shard_rows(self) -> int:
        return len(self.images) // SHARDS


def write(folder: Path, kind: RowKind, megabytes: float, layouts: Sequence[str] = LAYOUTS) -> Data:
    """Makes the rows and writes them in these layouts and as TFRecord."""
    folder.mkdir()
    count = kind.count(megabytes)
    data = Data(kind, kind.images(count), kind.labels(count))
    for layout in layouts:
        try:
            options = _filters(layout)
        except ImportError as error:
            data.missing[layout] = f"not measured: {error}"
            continue
        data.paths[layout] = [_shard(folder / f"{layout}-{i}.h5", data, i, layout, options) for i in range(SHARDS)]
        with h5py.File(data.paths[layout][0]) as file:
            data.compression[layout] = file["image"].nbytes / file["image"].id.get_storage_size()
    data.tfrecords = [_tfrecord(folder / f"{i}.tfrecord", data, i) for i in range(SHARDS)]
    return data


def _filters(layout: str) -> dict[str, Any]:
    if layout == "blosc":
        import hdf5plugin

        return dict(hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE))
    return {"compression": layout} if layout in ("gzip", "lzf") else {}


def _part(data: Data, shard: int) -> slice:
    return slice(shard * data.shard_rows, (shard + 1) * data.shard_rows)


def _shard(path: Path, data: Data, shard: int, layout: str, options: dict[str, Any]) -> str:
    align = {"alignment_threshold": 1, "alignment_interval": 4096} if layout == "contiguous" else {}
    with h5py.File(path, "w", **align) as file:
        for name, array in (("image", data.images[_part(data, shard)]), ("label", data.labels[_part(data, shard)])):
            if layout != "contiguous":
                rows = max(1, round(CHUNK_BYTES / array[0].nbytes))
                options = {**options, "chunks": (min(rows, len(array)), *array.shape[1:])}
            file.create_dataset(name, data=array, **options)
    return str(path)


def _tfrecord(path: Path, data: Data, shard: int) -> str:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(data.images[_part(data, shard)], data.labels[_part(data, shard)], strict=True):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return str(path)

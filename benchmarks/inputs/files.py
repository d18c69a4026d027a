"""The same rows as HDF5 in five layouts and as TFRecord, four files each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from inputs.rows import SHARDS, RowKind

LAYOUTS = ("contiguous", "chunked", "gzip", "lzf", "blosc")
CHUNK_BYTES = 256 << 10


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

"""TFRecord files of tf.train.Example, plain or gzipped, parsed in bulk by TensorFlow.

The first records show what each feature holds: integers, floats, or bytes that --dtype defines how to split.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.data.ragged import TEXT, Ragged
from hpc_train.data.sources.recipe import Part, Target
from hpc_train.data.sources.table import PIECE_BYTES, Block, Field, Rows, is_gzipped, open_unzipped
from hpc_train.errors import UserError

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""Set where they are not yet, before TensorFlow is imported: it logs nothing and takes no GPU."""

SAMPLE_RECORDS = 64
FRAME_BYTES = 16
"""Of a record beside its data: length and two checksums."""
MAX_BATCH_RECORDS = 8192
MAX_RECORD_BYTES = 64 << 20
_LENGTH = struct.Struct("<Q")
IMAGES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP", b"BM": "BMP"}


def _tensorflow() -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import tensorflow as tf
    except ImportError:
        raise UserError("reading TFRecord needs TensorFlow, which is not installed here") from None
    return tf


class TFRecord(Part):
    """A TFRecord file.

    Args:
        targets: The types asked for: a feature of bytes is read where it has one.

    Raises:
        UserError: Not readable, no records, or records that are no tf.train.Example.
    """

    def __init__(self, path: Path, targets: Mapping[str, Target]) -> None:
        self.name, self._path = str(path), path
        self.fields: dict[str, Field] = {}
        self.refused: dict[str, str] = {}
        self._bytes: set[str] = set()
        self._read_bytes, self._all_bytes = 0, path.stat().st_size
        self._zipped = is_gzipped(path)
        count = self._measure()
        tf = _tensorflow()
        try:
            records = [r.numpy() for r in self._records(tf).take(count)]
            examples = [tf.train.Example.FromString(record) for record in records]
        except Exception as error:  # of protobuf and of TensorFlow, each with a class of its own
            raise UserError(f"{path}: cannot be read as TFRecord of tf.train.Example: {_short(error)}") from None
        if not examples:
            raise UserError(f"{path}: has no records")
        self.names = sorted({name for example in examples for name in example.features.feature})
        for name in self.names:
            found = [example.features.feature[name] for example in examples if name in example.features.feature]
            kinds = {feature.WhichOneof("kind") or "nothing" for feature in found}
            lengths = {len(getattr(f, kind).value) for f in found for kind in kinds if kind != "nothing"}
            kinds -= {"nothing"}
            mean = sum(feature.ByteSize() for feature in found) // len(examples)
            if len(found) < len(examples):
                self.refused[name] = "not all records have it"
            elif len(kinds) != 1:
                self.refused[name] = "its values are not of one kind in all records"
            elif kinds == {"bytes_list"} and lengths != {1}:
                self.refused[name] = "its number of values is not the same in all records"
            elif len(lengths) != 1 or 0 in lengths:
                dtype = np.dtype(np.int64 if kinds == {"int64_list"} else np.float32)
                self.fields[name] = Field(name, dtype, (), True, max(dtype.itemsize, 4 * mean))
            elif kinds == {"bytes_list"}:
                self._add_bytes(name, found[0].bytes_list.value[0], targets.get(name), mean)
            else:
                (kind,), (length,) = kinds, lengths
                dtype = np.dtype(np.int64 if kind == "int64_list" else np.float32)
                self.fields[name] = Field(name, dtype, () if length == 1 else (length,))

    def _measure(self) -> int:
        """Notes how long records are, before TensorFlow makes room for them; returns how many are looked at.

        Raises:
            UserError: One is too long.
        """
        lengths: list[int] = []
        self._record_bytes, number = 1, 0
        with open_unzipped(self._path) as stream:
            while len(header := stream.read(_LENGTH.size)) == _LENGTH.size:
                length, number = _LENGTH.unpack(header)[0], number + 1
                if length > MAX_RECORD_BYTES:
                    raise UserError(f"{self.name}: record {number} has {length:,} bytes; {MAX_RECORD_BYTES:,} at most")
                self._record_bytes = max(self._record_bytes, length)
                if len(lengths) < SAMPLE_RECORDS and sum(lengths) < PIECE_BYTES:
                    lengths.append(length)
                stream.seek(length + FRAME_BYTES - _LENGTH.size, os.SEEK_CUR)
        return max(1, len(lengths))

    def _add_bytes(self, name: str, first: bytes, target: Target | None, mean: int) -> None:
        if target is not None and target.dtype == TEXT:
            self.fields[name] = Field(name, TEXT, (), True, mean)
            return
        image = next((kind for magic, kind in IMAGES.items() if first.startswith(magic)), None)
        field = Field(name, target.dtype, target.shape or ()) if target else None
        if field and field.row_bytes == len(first):
            self.fields[name] = field
            self._bytes.add(name)
        elif image is not None:
            self.refused[name] = (
                f"{image} images; decode them with tf.io.decode_image, resize them to one size and pass the arrays "
                "to hpc_train.data.write_shards"
            )
        elif target is not None:
            self.refused[name] = f"{len(first)} bytes in the first record, which is not {target}"
        else:
            self.refused[name] = (
                f"{len(first)} bytes in the first record; say what they are, as in --dtype {name}=uint8[28,28] or "
                f"{name}=text"
            )

    def _records(self, tf: Any) -> Any:
        return tf.data.TFRecordDataset(str(self._path), "GZIP" if self._zipped else "", buffer_size=4 << 20)

    def share(self) -> float | None:
        return None if self._zipped else min(1.0, self._read_bytes / self._all_bytes)

    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        assert start == 0, "rows that are not counted are read from the first"
        tf = _tensorflow()
        schema = {name: self._feature(tf, name) for name in names}

        def parse(serialized: Any) -> Any:
            parsed = tf.io.parse_example(serialized, schema)
            for name in self._bytes & parsed.keys():
                decoded = tf.io.decode_raw(parsed[name], tf.uint8)
                parsed[name] = tf.ensure_shape(decoded, [None, self.fields[name].row_bytes])
            return parsed, tf.reduce_sum(tf.strings.length(serialized) + FRAME_BYTES)

        batch = max(1, min(MAX_BATCH_RECORDS, PIECE_BYTES // self._record_bytes))
        first = 0
        try:
            for parsed, read_bytes in self._records(tf).batch(batch).map(parse).prefetch(1):
                self._read_bytes += int(read_bytes)
                block: Block = {name: self._values(parsed[name], name) for name in names}
                first += len(block[names[0]])
                yield block
        except (tf.errors.OpError, ValueError) as error:
            raise UserError(self._explain(tf, schema, first, batch, error)) from None

    def _feature(self, tf: Any, name: str) -> Any:
        """How TensorFlow parses a feature."""
        field = self.fields[name]
        if field.ragged and not field.is_text:
            return tf.io.RaggedFeature(tf.as_dtype(field.dtype), row_splits_dtype=tf.int64)
        if name in self._bytes or field.is_text:
            return tf.io.FixedLenFeature([], tf.string)
        return tf.io.FixedLenFeature(field.shape, tf.as_dtype(field.dtype))

    def _values(self, found: Any, name: str) -> Rows:
        if self.fields[name].is_text:
            return Ragged.of_texts(found.numpy().tolist())
        if self.fields[name].ragged:
            return Ragged(found.values.numpy(), found.row_lengths().numpy())
        array = found.numpy()
        if name not in self._bytes:
            return np.asarray(array)
        field = self.fields[name]
        little = field.dtype.newbyteorder("<")
        values: np.ndarray = np.ascontiguousarray(array).view(little).astype(field.dtype, copy=False)
        return values.reshape(-1, *field.shape)

    def _explain(self, tf: Any, schema: Mapping[str, Any], first: int, batch: int, error: Exception) -> str:
        """Which record of a batch is the bad one, and why."""
        number = first + 1
        try:
            for record in self._records(tf).skip(first).take(batch):
                parsed = tf.io.parse_single_example(record, schema)
                for name in self._bytes & parsed.keys():
                    length, wanted = len(parsed[name].numpy()), self.fields[name].row_bytes
                    if length != wanted:
                        return f"{self.name}: record {number}: feature {name!r} has {length} bytes, not {wanted}"
                number += 1
        except (tf.errors.OpError, ValueError) as precise:
            error = precise
        return f"{self.name}: record {number} cannot be read: {_short(error)}"


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].split(" [Op:")[0].rpartition("}} ")[2][:200]


def looks_like_tfrecord(start: bytes) -> bool:
    """Whether a file's first 12 bytes are a record's length and that length's masked CRC-32C (RFC 3720, B.4)."""
    if len(start) < 12:
        return False
    crc = 0xFFFFFFFF
    for byte in start[:8]:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    crc ^= 0xFFFFFFFF
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return bool(struct.unpack("<I", start[8:12])[0] == masked)

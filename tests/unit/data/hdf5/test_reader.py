from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train import HDF5Input, UserError
from hpc_train.data.hdf5 import contiguous, data_file, mapped_table, mmap_region
from hpc_train.data.hdf5 import layout as layout_module
from hpc_train.data.hdf5.buffer_pool import BufferPool
from hpc_train.data.hdf5.chunked import ChunkCache, ChunkIndex
from hpc_train.data.hdf5.data_file import DataFile, ShortFileError
from hpc_train.data.hdf5.layout import Chunked, Contiguous, Opaque
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading import batch_source
from hpc_train.data.loading.batch_source import ReadResources, training_reader
from hpc_train.data.memory import available_bytes, control_groups
from tests.support import environment, examples

DTYPES = ["|u1", "|i1", "<i2", ">i4", "<u8", ">f4", "<f8", "<f2", "?", ">c8"]
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": True},
    "rows": {"chunk_rows": 3},
    "gzip": {"chunk_rows": 4, "compression": "gzip"},
    "all": {"chunk_rows": 5, "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"chunk_rows": 2, "compression": "lzf"},
    "scaleoffset": {"chunk_rows": 4, "scaleoffset": 0},
    "parts": {"chunk_rows": 3, "narrow": True, "compression": "gzip"},
}


def write(path: Path, array: np.ndarray, layout: str, name: str = "x") -> None:
    options = dict(LAYOUTS[layout])
    rows = options.pop("chunk_rows", None)
    narrow = options.pop("narrow", False)
    if rows:
        inner = tuple(max(1, n // 2 + 1) for n in array.shape[1:]) if narrow else array.shape[1:]
        options["chunks"] = (min(rows, len(array)), *inner)
    if options.get("scaleoffset") is not None and (array.dtype.kind not in "iu" or array.itemsize == 1):
        options.pop("scaleoffset")
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=array, **options)


@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from(sorted(LAYOUTS)), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(DTYPES),
    st.sampled_from([(), (1,), (3,), (2, 5), (2, 1, 3)]),
    st.integers(0, 40),
    st.sampled_from([1, 3]),
    st.data(),
)
def test_rows_come_as_asked_for_whatever_the_layout(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[int, str, bool]],
    dtype: str,
    shape: tuple[int, ...],
    cached_rows: int,
    threads: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    total = sum(rows for rows, _, _ in parts)
    whole = (np.random.default_rng(1).random((total, *shape)) * 200).astype(dtype)
    start = 0
    for i, (rows, layout, swapped) in enumerate(parts):
        part = whole[start : start + rows]
        write(folder / f"s{i}.h5", part.astype(part.dtype.newbyteorder("S")) if swapped else part, layout)
        write(folder / f"s{i}.h5", np.arange(start, start + rows), "contiguous" if swapped else "gzip", "y")
        start += rows
    shards = find_shards(HDF5Input(str(folder / "s*.h5")))
    assert shards == ShardSet.from_json(json.loads(json.dumps(shards.to_json())))
    held = data.draw(st.sampled_from([0, contiguous.MAX_HELD_BYTES]))
    with mock.patch.object(contiguous, "MAX_HELD_BYTES", held), Reader(shards, threads, cached_rows, 2) as reader:
        for _ in range(3):
            rows = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=40)))
            if data.draw(st.booleans()):
                rows = np.arange(rows.min(), rows.max() + 1)
            if data.draw(st.booleans()):
                reader.expect(rows)
            if data.draw(st.booleans()):
                for future in reader.begin([(int(rows.min()), int(rows.max()) + 1)]):
                    future.result()
            x, y = reader.read(rows)
            assert y.tolist() == rows.tolist()
            assert x.dtype.isnative
            assert x.ctypes.data % 64 == 0
            np.testing.assert_array_equal(x, whole[rows])
            reader.drop([(0, total // 2)], [(0, 1)])


def test_layouts_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    array = np.arange(12, dtype=np.int32).reshape(6, 2)
    for layout in ("contiguous", "gzip", "scaleoffset"):
        write(path, array, layout, layout)
    with h5py.File(path, "a") as file:
        file.create_dataset("never_written", (6, 2), "f4")
        file.create_dataset("outside", (6, 2), "i4", external=[(str(tmp_path / "x.bin"), 0, h5py.h5f.UNLIMITED)])
        file["outside"][:] = array
        virtual = h5py.VirtualLayout((6, 2), "i4")
        virtual[:] = h5py.VirtualSource(str(path), "contiguous", (6, 2))
        file.create_virtual_dataset("virtual", virtual)
        odd = h5py.h5t.STD_I32LE.copy()
        odd.set_precision(24)
        h5py.h5d.create(file.id, b"odd", odd, h5py.h5s.create_simple((6, 2)))
        file["odd"][:] = array
        file["label"] = np.arange(6)
    shards = find_shards(
        HDF5Input(
            str(path),
            features=("contiguous", "gzip", "scaleoffset", "never_written", "outside", "virtual", "odd"),
            label="label",
            external=str(tmp_path / "x.bin"),
        )
    )
    kinds = dict(zip((c.name for c in shards.columns), shards.layouts[0], strict=True))
    assert isinstance(kinds["contiguous"], Contiguous)
    assert isinstance(kinds["gzip"], Chunked)
    for name in ("scaleoffset", "never_written", "outside", "virtual", "odd"):
        assert isinstance(kinds[name], Opaque), name
        assert kinds[name].reason
    with Reader(shards) as reader:
        for name, read in zip(kinds, reader.read(np.array([0, 2, 2, 5])), strict=True):
            if name != "label":
                expected = np.zeros((6, 2)) if name == "never_written" else array
                np.testing.assert_array_equal(read, expected[[0, 2, 2, 5]], err_msg=name)


def test_holes_in_chunked_data_have_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", (10, 2), "f4", chunks=(2, 2), compression="gzip", fillvalue=7)
        x[4:6] = 1
        file["y"] = np.arange(10)
    with Reader(find_shards(HDF5Input(str(tmp_path / "a.h5"))), 2) as reader:
        assert reader.read(np.arange(10))[0][:, 0].tolist() == [7, 7, 7, 7, 1, 1, 7, 7, 7, 7]


def shards_of(tmp_path: Path, layout: str, rows: int = 1000, row: int = 100) -> tuple[ShardSet, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 9, (rows, row), np.uint8)
    write(tmp_path / "a.h5", x, layout)
    write(tmp_path / "a.h5", np.arange(rows), "contiguous", "y")
    return find_shards(HDF5Input(str(tmp_path / "a.h5"))), x


@pytest.mark.parametrize("layout", ["contiguous", "gzip", "scaleoffset"])
def test_threads_read_side_by_side(tmp_path: Path, layout: str) -> None:
    shards, x = shards_of(tmp_path, layout)
    random = np.random.default_rng(1)
    batches = [np.sort(random.integers(0, 1000, 50)) for _ in range(60)]
    with Reader(shards, 3, 20, 4) as reader, ThreadPoolExecutor(6) as pool:
        for rows, (got, _) in zip(batches, pool.map(reader.read, batches), strict=True):
            np.testing.assert_array_equal(got, x[rows])


@pytest.mark.parametrize("shuffle", ["none", "block"])
def test_each_chunk_is_decoded_once_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: str) -> None:
    shards, x = shards_of(tmp_path, "gzip")
    decoded: Counter[int] = Counter()
    read = ChunkIndex.read
    monkeypatch.setattr(layout_module, "MIN_BAND_BYTES", 1)

    def count(self: ChunkIndex, file: DataFile, band: int, out: np.ndarray) -> None:
        decoded[band] += 1
        read(self, file, band, out)

    monkeypatch.setattr(ChunkIndex, "read", count)
    source = HDF5Input(shards.paths, batch_size=7, shuffle=shuffle, epochs=1)  # type: ignore[arg-type]
    monkeypatch.setattr(batch_source, "MAX_GROUP_STEPS", 3)
    with training_reader(source, shards, 0, 1, resources=ReadResources(2)) as batches:
        assert batches.groups.end == 142
        for number in range(-(-142 // batches.groups.steps)):
            rows, y = batches.groups.group(number)
            np.testing.assert_array_equal(rows, x[y])
    assert set(decoded) >= set(range(248)), "of 1000 rows 994 are read"
    again = sum(times - 1 for times in decoded.values())
    assert again <= (0 if shuffle == "none" else 20), "only a chunk that two windows share is decoded twice"


def test_slow_files_are_fetched_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, x = shards_of(tmp_path, "contiguous")
    monkeypatch.setattr(contiguous, "MAX_HELD_BYTES", 0)
    monkeypatch.setattr(contiguous, "SLOW_SECS_PER_BYTE", 0)
    monkeypatch.setattr(contiguous, "SLOW_SECS_PER_ROW", 0)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, offset, length, advice: told.append((offset, length)))
    rows = np.array([5, 3, 9])
    with Reader(shards) as reader:
        reader.expect(rows)
        assert not told, "nothing is known to be slow yet"
        np.testing.assert_array_equal(reader.read(rows)[0], x[rows])
        reader.expect(rows)
        layout = shards.layouts[0][0]
        assert isinstance(layout, Contiguous)
        assert told[:3] == [(layout.offset + row * 100, 100) for row in rows.tolist()]
        np.testing.assert_array_equal(reader.read(np.arange(50))[0], x[:50])  # runs by preadv now
        for future in reader.begin([(0, 600), (600, 1000)]):
            future.result()


def test_a_full_cache_waits_instead_of_overwriting() -> None:
    def decode(key: tuple[int, int], out: np.ndarray) -> None:
        time.sleep(0.001)
        out[:] = key[1]

    with ThreadPoolExecutor(2) as executor:
        cache = ChunkCache(4, 2, 8, decode, executor)

        def use(k: int) -> None:
            keys = [(0, (k + i) % 11) for i in range(3)]
            with cache.holding(keys) as slots:
                time.sleep(0.001)
                for (_, band), slot in zip(keys, slots, strict=True):
                    assert (cache.rows.reshape(4, 2, 8)[slot] == band).all()

        with ThreadPoolExecutor(5) as users:
            list(users.map(use, range(100)))


def test_memory_is_used_again_only_when_nobody_looks_at_it() -> None:
    pool = BufferPool()
    array = pool.take((4, 3), "float32")
    address = array.ctypes.data
    assert address % 64 == 0
    view = array[1:, ::2]
    del array
    gc.collect()
    assert pool.take((4, 3), "float32").ctypes.data != address, "a view still shows the memory"
    del view
    gc.collect()
    assert address in {pool.take((12,), "float32").ctypes.data for _ in range(1)} | {
        a.ctypes.data for a in [pool.take((12,), "int32"), pool.take((12,), "int32")]
    }


def test_tensorflow_takes_batches_without_a_copy() -> None:
    import tensorflow as tf

    pool = BufferPool()
    seen: list[int] = []

    def load(k: Any) -> np.ndarray:
        array = pool.take((1 << 18,), "float32")
        array[:] = float(k)
        seen.append(array.ctypes.data)
        return array

    dataset = tf.data.Dataset.range(50).map(lambda k: tf.numpy_function(load, [k], tf.float32)).prefetch(2)
    for k, batch in enumerate(dataset):
        assert batch.numpy().min() == batch.numpy().max() == k
        if k == 10:
            assert batch._numpy().ctypes.data in seen, "the tensor is the array"
    assert len(set(seen)) < 12, "memory goes round"


@pytest.mark.parametrize("held", [0, 1 << 20])
def test_a_short_file_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(contiguous, "MAX_HELD_BYTES", held)
    monkeypatch.setattr(data_file, "RETRY_WAITS_SECS", (10**6,))
    shards, _ = shards_of(tmp_path, "contiguous")
    os.truncate(shards.paths[0], 20_000)
    with Reader(shards) as reader:
        for rows in (np.arange(900, 950), np.array([1, 900, 950])):
            with pytest.raises(ShortFileError, match=r"ends at byte 20000.*a\.h5"):
                reader.read(rows)


def test_a_file_cut_short_under_a_map_does_not_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contiguous, "MAX_HELD_BYTES", 0)
    shards, x = shards_of(tmp_path, "contiguous", rows=100_000)
    rows = np.arange(0, 100_000, 1000)
    with Reader(shards) as reader:
        np.testing.assert_array_equal(reader.read(rows)[0], x[rows])  # from now on there is a map
        os.truncate(shards.paths[0], 1_000_000)
        with pytest.raises(ShortFileError):
            reader.read(rows)


def test_sigbus_elsewhere_still_ends_the_process(tmp_path: Path) -> None:
    program = """
import mmap, os, sys
from hpc_train.data.hdf5.mmap_region import Region
path = sys.argv[1]
open(path, "wb").write(bytes(20000))
ours = Region(1 << 20)
ours.put(4096, os.open(path, os.O_RDONLY), 0, 20000, False)
other = mmap.mmap(os.open(path, os.O_RDONLY), 20000, prot=mmap.PROT_READ)
os.truncate(path, 0)
print(ours.data[4096 + 9000], ours.failed, flush=True)
print(other[9000])
"""
    command = [sys.executable, "-c", program, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment())
    assert done.stdout == "0 True\n"
    assert done.returncode == -7


def fail_some(monkeypatch: pytest.MonkeyPatch, failures: int, number: int) -> list[float]:
    """Lets so many calls of os.preadv fail, and waits be noted instead of waited."""
    waits: list[float] = []
    left = [failures]
    preadv = os.preadv

    def faltering(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", faltering)
    monkeypatch.setattr(data_file.time, "sleep", waits.append)
    return waits


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("layout", ["contiguous", "gzip"])
def test_passing_errors_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, layout: str) -> None:
    shards, x = shards_of(tmp_path, layout)
    monkeypatch.setattr(contiguous, "MAX_MAPPED_ROW_BYTES", 0)
    waits = fail_some(monkeypatch, 3, number)
    with Reader(shards) as reader:
        np.testing.assert_array_equal(reader.read(np.arange(50))[0], x[:50])
    assert waits == [0.1, 0.5, 2.0]


def test_lasting_errors_are_told_with_path_and_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, _ = shards_of(tmp_path, "contiguous")
    monkeypatch.setattr(contiguous, "MAX_MAPPED_ROW_BYTES", 0)
    waits = fail_some(monkeypatch, 1000, errno.ESTALE)
    with Reader(shards) as reader, pytest.raises(OSError, match=r"ESTALE: .*\(6 tries\).*a\.h5") as told:
        reader.read(np.arange(50))
    assert told.value.errno == errno.ESTALE
    assert waits == list(data_file.RETRY_WAITS_SECS)


def test_a_real_io_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Reading an unmapped address of /proc/self/mem gives EIO from the kernel itself.
    monkeypatch.setattr(data_file, "RETRY_WAITS_SECS", (0.01,))
    with pytest.raises(OSError, match=r"EIO: .*\(2 tries\).*/proc/self/mem"):
        DataFile("/proc/self/mem").read_into(0, np.empty(10, np.uint8))


def test_other_errors_are_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, _ = shards_of(tmp_path, "contiguous")
    Path(shards.paths[0]).unlink()
    monkeypatch.setattr(data_file.time, "sleep", lambda secs: pytest.fail("no use in waiting"))
    for rows in (np.arange(10), np.array([1, 5])):
        with Reader(shards) as reader, pytest.raises(FileNotFoundError, match=r"ENOENT.*a\.h5"):
            reader.read(rows)


def test_a_damaged_chunk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "MIN_BAND_BYTES", 1)
    shards, x = shards_of(tmp_path, "gzip")
    with h5py.File(shards.paths[0]) as file:
        chunk = file["x"].id.get_chunk_info(10)
    with open(shards.paths[0], "r+b") as raw:
        raw.seek(chunk.byte_offset + 20)
        raw.write(bytes(10))
    with Reader(shards, 2) as reader:
        for _ in range(2):
            with pytest.raises(OSError, match=r"a\.h5: dataset 'x', rows 40 to 43: damaged: gzip"):
                reader.read(np.arange(38, 50))
        np.testing.assert_array_equal(reader.read(np.arange(30))[0], x[:30])


def test_more_shards_than_open_files(tmp_path: Path) -> None:
    for i in range(300):
        write(tmp_path / f"{i:03d}.h5", np.full((4, 2), i), "contiguous")
        write(tmp_path / f"{i:03d}.h5", np.full(4, i), "gzip", "y")
    shards = find_shards(HDF5Input(str(tmp_path / "*.h5")))
    before = len(os.listdir("/proc/self/fd"))
    with Reader(shards, 2, 100, 100) as reader:
        rows = np.sort(np.random.default_rng(0).integers(0, 1200, 500))
        x, y = reader.read(rows)
        assert len(os.listdir("/proc/self/fd")) < before + 140
    assert x[:, 0].tolist() == y.tolist() == (rows // 4).tolist()
    assert len(os.listdir("/proc/self/fd")) <= before


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 5000)), min_size=1, max_size=8),
    st.sampled_from([1, 3, 8, 64, 784, 1231, 3072, 4096, 150_528]),
    st.booleans(),
)
def test_parts_of_files_are_laid_out_as_one_table(parts: list[tuple[int, int]], row_bytes: int, aligned: bool) -> None:
    page = mmap.PAGESIZE
    offsets = [offset * (page if aligned else 1) for offset, _ in parts]
    rows = [count for _, count in parts]
    places, firsts, total = mapped_table.layout(offsets, rows, row_bytes)
    assert places[0] is not None
    start, end = places[0] + offsets[0] % page, 0
    for offset, count, place, first in zip(offsets, rows, places, firsts, strict=True):
        assert place is not None or not aligned, "aligned datasets always fit"
        if place is not None:
            assert place % page == 0
            assert place >= end, "parts do not overlap"
            begin = place + offset % page
            assert begin == start + first * row_bytes, "rows lie at multiples of a row"
            end = begin + count * row_bytes
    assert total >= end


def test_shards_that_do_not_fit_into_one_table(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 9, (50, 64), np.uint8)
    for i in range(4):
        with h5py.File(tmp_path / f"{i}.h5", "w", userblock_size=0) as file:
            if i % 2:
                file["before"] = np.zeros(3, np.uint8)  # moves what follows to an odd place
            file["x"], file["y"] = x + i, np.arange(50)
    shards = find_shards(HDF5Input(str(tmp_path / "*.h5"), features="x", label="y"))
    offsets = {layouts[0].offset % 64 for layouts in shards.layouts if isinstance(layouts[0], Contiguous)}
    assert len(offsets) > 1, "the test needs shards of which some do not fit"
    with Reader(shards) as reader:
        rows = np.random.default_rng(1).integers(0, 200, 99)
        np.testing.assert_array_equal(reader.read(rows)[0], x[rows % 50] + (rows // 50)[:, None].astype(np.uint8))


@pytest.mark.parametrize("count", [1, 3])
def test_long_rows_at_odd_places(tmp_path: Path, count: int) -> None:
    x = np.random.default_rng(0).integers(0, 255, (31, 4096), np.uint8)
    for i in range(count):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["label"] = np.arange(31, dtype=np.uint8)  # an odd number of bytes before the rows
            file["image"] = x + i
    shards = find_shards(HDF5Input(str(tmp_path / "*.h5")))
    with mock.patch.object(contiguous, "MAX_HELD_BYTES", 0), Reader(shards) as reader:
        rows = np.random.default_rng(1).integers(0, 31 * count, 40)
        np.testing.assert_array_equal(reader.read(rows)[0], x[rows % 31] + (rows // 31)[:, None].astype(np.uint8))


def test_what_is_kept_in_memory_is_bounded_over_all_columns(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(10):
            file[f"x{i}"] = np.full(1000, i, np.float64)
        file["y"] = np.arange(1000, dtype=np.uint8)
    shards = find_shards(HDF5Input(str(tmp_path / "a.h5")))
    with mock.patch.object(contiguous, "MAX_HELD_BYTES", 20_000), Reader(shards) as reader:
        held = [column._plain is not None and column._plain.is_held for column in reader._columns]
        assert sum(held) == 3, "the label and two features"
        assert held[-1]
        assert [a[0] for a in reader.read(np.array([7, 3]))] == [*range(10), 7]


def test_small_chunks_are_decoded_several_at_once(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 9, (3001, 200), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(1, 200), compression="gzip")
        file["y"] = np.arange(3001)
    shards = find_shards(HDF5Input(str(tmp_path / "a.h5")))
    layout = shards.layouts[0][0]
    assert isinstance(layout, Chunked)
    assert layout.band_rows(200) == 328
    with Reader(shards, 2, 1000, 3) as reader:
        for rows in (np.arange(3001), np.random.default_rng(1).integers(0, 3001, 99)):
            np.testing.assert_array_equal(reader.read(rows)[0], x[rows])


def test_datasets_that_grow_sideways_are_read_through_hdf5(tmp_path: Path) -> None:
    x = np.arange(12 * 7).reshape(12, 7)
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=x, chunks=(5, 3), maxshape=(12, None))
        file["y"] = np.arange(12)
    shards = find_shards(HDF5Input(str(tmp_path / "a.h5")))
    assert isinstance(shards.layouts[0][0], Opaque)
    with Reader(shards) as reader:
        np.testing.assert_array_equal(reader.read(np.array([11, 0, 4]))[0], x[[11, 0, 4]])


def test_reads_through_hdf5_are_retried_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(data_file.time, "sleep", waits.append)
    calls = iter([OSError("Can't read data (errno = 5, error message = 'Input/output error')")] * 2)

    def read() -> str:
        error = next(calls, None)
        if error:
            raise error
        return "rows"

    assert DataFile("a.h5").retried(read) == "rows"
    assert waits == [0.1, 0.5]
    with pytest.raises(OSError, match=r"EIO: .*\(6 tries\).*a\.h5"):
        DataFile("a.h5").retried(lambda: (_ for _ in ()).throw(OSError("read failed, errno = 5, more")))
    with pytest.raises(OSError, match=r"a\.h5: cannot be read: bad link"):
        DataFile("a.h5").retried(lambda: (_ for _ in ()).throw(RuntimeError("bad link")))


def test_maps_are_given_up_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, x = shards_of(tmp_path, "contiguous")
    monkeypatch.setattr(contiguous, "MAX_HELD_BYTES", 0)

    def refuse(*args: object) -> None:
        raise OSError(errno.ENODEV, "no maps here")

    monkeypatch.setattr(mmap_region.Region, "put", refuse)
    with Reader(shards) as reader:
        for _ in range(10):
            np.testing.assert_array_equal(reader.read(np.array([5, 2]))[0], x[[5, 2]])
        plain = reader._columns[0]._plain
        assert plain is not None
        assert len(plain._old_tables) == contiguous.MAX_TABLES


def test_damaged_files_are_told_by_name(tmp_path: Path) -> None:
    write(tmp_path / "good.h5", np.zeros((20, 4)), "gzip")
    write(tmp_path / "good.h5", np.arange(20), "contiguous", "y")
    good = (tmp_path / "good.h5").read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        for place in random.integers(0, 2000, 3):
            damaged[place] ^= 1 << int(random.integers(0, 8))
        path = tmp_path / "bad.h5"
        path.write_bytes(damaged)
        try:
            with Reader(find_shards(HDF5Input(str(path), features="x", label="y"))) as reader:
                reader.read(np.arange(20))
        except (UserError, OSError) as error:
            assert "bad.h5" in str(error), error
            refused += 1
    assert refused > 30


def test_datasets_of_strange_types_may_stand_beside(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", np.zeros((4, 2)), "contiguous")
    write(tmp_path / "a.h5", np.arange(4), "contiguous", "y")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        wide = h5py.h5t.STD_I64LE.copy()
        wide.set_size(16)
        h5py.h5d.create(file.id, b"wide", wide, h5py.h5s.create_simple((4,)))
    assert find_shards(HDF5Input(str(tmp_path / "a.h5"), features="x")).rows == 4
    with pytest.raises(UserError, match="'wide' does not hold numbers"):
        find_shards(HDF5Input(str(tmp_path / "a.h5"), features="wide", label="y"))


def test_rows_of_many_megabytes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (6, 3_000_000), np.uint8)
    write(tmp_path / "a.h5", x, "contiguous")
    write(tmp_path / "b.h5", x, "rows")
    for name in "ab":
        write(tmp_path / f"{name}.h5", np.arange(6), "contiguous", "y")
    with Reader(find_shards(HDF5Input(str(tmp_path / "*.h5"))), 2) as reader:
        rows = np.array([0, 2, 5, 7, 8, 11])
        np.testing.assert_array_equal(reader.read(rows)[0], x[rows % 6])


LOCKER = """
import h5py, sys
file = h5py.File(sys.argv[1], "r+")
print("open", flush=True)
sys.stdin.read()
"""


def test_what_is_told_of_files_before_training(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path, np.zeros((4, 2)), "contiguous")
    write(path, np.arange(4), "contiguous", "y")
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=r"a\.h5: is being written by another process"):
            find_shards(HDF5Input(str(path)))
        writer.kill()
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(UserError, match=r"a\.h5: cannot be read as HDF5: .*truncated"):
        find_shards(HDF5Input(str(path)))


def test_a_filter_that_nobody_has_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((2, 2))
        properties.set_filter(31999, h5py.h5z.FLAG_OPTIONAL, (1,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((4, 2)), properties)
        file["y"] = np.arange(4)
    with pytest.raises(UserError, match=r"a\.h5: dataset 'x' cannot be read: compressed with .*31999"):
        find_shards(HDF5Input(str(tmp_path / "a.h5")))


def test_blocks_are_of_whole_chunks_within_shards(tmp_path: Path) -> None:
    for i, rows in enumerate((1000, 7, 2003)):
        write(tmp_path / f"{i}.h5", np.zeros((rows, 4), np.uint8), "rows")
        write(tmp_path / f"{i}.h5", np.arange(rows), "contiguous", "y")
    shards = find_shards(HDF5Input(str(tmp_path / "*.h5")))
    starts = shards.blocks.starts.tolist()
    assert {0, 1000, 1007, 3010} <= set(starts)
    assert starts == sorted(set(starts))
    for start, shard_start in ((s, max(b for b in (0, 1000, 1007) if b <= s)) for s in starts[:-1]):
        assert (start - shard_start) % 3 == 0


def test_free_memory_is_that_of_the_tightest_limit(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/slurm/job_1\n")
    assert available_bytes(proc, groups) == 8000 << 10
    (groups / "slurm" / "job_1").mkdir(parents=True)
    (groups / "slurm" / "job_1" / "memory.max").write_text("max\n")
    (groups / "slurm" / "job_1" / "memory.current").write_text("5\n")
    (groups / "slurm" / "memory.max").write_text("3000000\n")
    (groups / "slurm" / "memory.current").write_text("1000000\n")
    (groups / "slurm" / "memory.stat").write_text("anon 5\ninactive_file 400000\n")
    assert available_bytes(proc, groups) == 2_400_000
    assert control_groups(proc) == ["slurm/job_1"]
    for local_ranks, in_group, share in ((2, 2, 1_200_000), (2, 1, 1_200_000), (1, 1, 2_400_000), (8, 1, 300_000)):
        assert available_bytes(proc, groups, local_ranks, in_group) == share
    (groups / "slurm" / "job_1" / "memory.max").write_text("200005\n")
    assert available_bytes(proc, groups, 2, 2) == 100_000
    assert available_bytes(proc, groups, 2, 1) == 200_000, "a group of the rank's own"
    assert available_bytes() > 1 << 20


def test_closing_while_threads_read_ahead(tmp_path: Path) -> None:
    shards, _ = shards_of(tmp_path, "gzip", rows=20_000)
    with Reader(shards, 2, 20_000, 0) as reader:
        reader.begin([(0, 20_000)])
    assert not [t for t in threading.enumerate() if t.name.startswith("hpc_train-read")]


def test_free_memory_knows_of_a_limit_of_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemAvailable:    8000 kB\n")
    (tmp_path / "self" / "cgroup").write_text("")
    (tmp_path / "self" / "statm").write_text("100 50 20 1 0 30 0\n")
    monkeypatch.setattr("hpc_train.data.memory.resource.getrlimit", lambda which: (4 << 20, 4 << 20))
    assert available_bytes(tmp_path, tmp_path) == (4 << 20) - 100 * os.sysconf("SC_PAGE_SIZE")

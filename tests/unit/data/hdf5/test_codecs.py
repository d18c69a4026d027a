from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data.hdf5 import codecs, filter_plugins
from hpc_train.data.hdf5.codecs import Decoder, Filter, filters_of, name_of, why_not
from tests.support import examples

PIPELINES: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "gzip+fletcher32": {"compression": "gzip", "fletcher32": True},
    "gzip+shuffle+fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lzf+shuffle+fletcher32": {"compression": "lzf", "shuffle": True, "fletcher32": True},
    "blosc": dict(hdf5plugin.Blosc()),
    "blosc+shuffle": {**hdf5plugin.Blosc("zstd", shuffle=hdf5plugin.Blosc.NOSHUFFLE), "shuffle": True},
    "zstd": dict(hdf5plugin.Zstd()),
    "zstd+shuffle+fletcher32": {**hdf5plugin.Zstd(), "shuffle": True, "fletcher32": True},
    "lz4": dict(hdf5plugin.LZ4()),
    "lz4+shuffle": {**hdf5plugin.LZ4(nbytes=64), "shuffle": True},
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
    "bitshuffle+fletcher32": {**hdf5plugin.Bitshuffle(nelems=8, cname="zstd"), "fletcher32": True},
    "bzip2": dict(hdf5plugin.BZip2()),
}
PLUGINS = {"blosc": 32001, "lz4": 32004, "bitshuffle": 32008, "zstd": 32015}


@pytest.fixture
def file() -> Iterator[h5py.File]:
    with in_memory() as opened:
        yield opened


def in_memory() -> h5py.File:
    return h5py.File("any", "w", driver="core", backing_store=False)


def dataset_of(file: h5py.File, options: dict[str, Any], data: np.ndarray, chunks: tuple[int, ...]) -> h5py.Dataset:
    dataset = file.create_dataset("x", data=data, chunks=chunks, **options)
    file.flush()
    return dataset


def stored(dataset: h5py.Dataset) -> list[tuple[tuple[int, ...], int, bytes]]:
    """Offset, filter mask and bytes of each chunk."""
    infos = [dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks())]
    return [(i.chunk_offset, i.filter_mask, dataset.id.read_direct_chunk(i.chunk_offset)[1]) for i in infos]


def decoded(dataset: h5py.Dataset, decoder: Decoder) -> np.ndarray:
    """The whole dataset, put together from chunks that `decoder` decoded."""
    whole = np.zeros(dataset.shape, dataset.dtype)
    for offset, mask, raw in stored(dataset):
        out = np.full(int(np.prod(dataset.chunks)) * dataset.dtype.itemsize, 0xA5, np.uint8)
        decoder.decode(memoryview(raw), mask, out)
        chunk = out.view(dataset.dtype).reshape(dataset.chunks)
        place = tuple(slice(o, min(o + c, n)) for o, c, n in zip(offset, dataset.chunks, dataset.shape, strict=True))
        whole[place] = chunk[tuple(slice(0, s.stop - s.start) for s in place)]
    return whole


def decoder_of(dataset: h5py.Dataset) -> Decoder:
    return Decoder(filters_of(dataset), dataset.dtype.itemsize)


def compressible(shape: tuple[int, ...], dtype: str = "<i4") -> np.ndarray:
    rng = np.random.default_rng(5)
    return (rng.integers(0, 4, shape) * rng.integers(0, 30, shape)).astype(dtype)


@settings(max_examples=examples(150))
@given(
    st.sampled_from(sorted(PIPELINES)),
    st.sampled_from(["u1", ">i2", "<f4", "<f8", "?", "S3", "<c16"]),
    st.lists(st.tuples(st.integers(1, 13), st.integers(1, 9)), min_size=1, max_size=3),
    st.sampled_from(["random", "sparse", "constant"]),
    st.integers(0, 2**32 - 1),
)
def test_chunks_are_decoded_as_hdf5_reads_them(
    pipeline: str, dtype: str, dims: list[tuple[int, int]], content: str, seed: int
) -> None:
    shape, chunks = tuple(n for n, _ in dims), tuple(min(n, c) for n, c in dims)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype=np.uint8)
    if content == "sparse":
        raw *= rng.random(raw.size) < 0.1
    elif content == "constant":
        raw[:] = seed % 256
    if dtype == "?":
        raw &= 1
    with in_memory() as file:
        dataset = dataset_of(file, PIPELINES[pipeline], raw.view(dtype).reshape(shape), chunks)
        assert name_of(filters_of(dataset)) == pipeline
        assert why_not(filters_of(dataset)) is None
        assert decoded(dataset, decoder_of(dataset)).tobytes() == dataset[()].tobytes()


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_chunks_of_many_blocks(file: h5py.File, pipeline: str) -> None:
    dataset = dataset_of(file, PIPELINES[pipeline], compressible((300, 7, 31)), (128, 7, 31))
    np.testing.assert_array_equal(decoded(dataset, decoder_of(dataset)), dataset[()])


@pytest.mark.parametrize("mask", range(8))
def test_stages_that_a_chunk_skipped_are_left_out(tmp_path: Path, mask: int) -> None:
    data = compressible((64,))
    chunk: bytes = data.tobytes()
    if not mask & 1:
        chunk = data.view(np.uint8).reshape(64, 4).T.tobytes()
    if not mask & 2:
        chunk = zlib.compress(chunk)
    if not mask & 4:
        chunk += codecs._fletcher32(np.frombuffer(chunk, np.uint8))[0].to_bytes(4, "little")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", (64,), "<i4", chunks=(64,), **PIPELINES["gzip+shuffle+fletcher32"])
        dataset.id.write_direct_chunk((0,), chunk, mask)
    with h5py.File(tmp_path / "x.h5") as file:  # HDF5 forgets the mask in the process that wrote the chunk
        dataset = file["x"]
        assert [stage.id for stage in filters_of(dataset)] == [2, 1, 3]
        assert stored(dataset) == [((0,), mask, chunk)]
        np.testing.assert_array_equal(dataset[()], data)
        np.testing.assert_array_equal(decoded(dataset, decoder_of(dataset)), data)


def test_checksums_before_the_compressor_and_below_a_shuffle(file: h5py.File) -> None:
    for i, order in enumerate(
        [("fletcher32", "shuffle", "deflate"), ("shuffle", "fletcher32", "deflate"), ("deflate", "shuffle")]
    ):
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((50, 3))
        for stage in order:
            getattr(properties, f"set_{stage}")()
        space = h5py.h5s.create_simple((120, 3))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"%d" % i, h5py.h5t.IEEE_F32BE, space, properties))
        dataset[:] = np.random.default_rng(1).random((120, 3))
        file.flush()
        np.testing.assert_array_equal(decoded(dataset, decoder_of(dataset)), dataset[()])


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16, 500])
@pytest.mark.parametrize("count", [1, 2, 77, 65_536, 65_537])
def test_shuffled_elements_of_any_width(width: int, count: int) -> None:
    count = min(count, 1_000_000 // width)
    elements = np.random.default_rng(width).integers(0, 256, (count, width), dtype=np.uint8)
    shuffled, out = elements.T.tobytes() + b"x" * (width - 1), np.empty((count + 1) * width - 1, np.uint8)
    Decoder([Filter(2, 0, (width,), "")], width).decode(shuffled, 0, out)
    assert out.tobytes() == elements.tobytes() + b"x" * (width - 1)


@pytest.mark.parametrize("size", [1, 2, 3, 719, 720, 2048, 2049, 4097, 100_001])
@pytest.mark.parametrize("content", ["random", "zeros", "ones"])
def test_checksums_are_those_of_hdf5(file: h5py.File, size: int, content: str) -> None:
    data = {
        "random": np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8),
        "zeros": np.zeros(size, np.uint8),
        "ones": np.full(size, 255, np.uint8),
    }[content]
    [(_, _, raw)] = stored(dataset_of(file, PIPELINES["fletcher32"], data, (size,)))
    checksum, swapped = codecs._fletcher32(data)
    assert raw[-4:] == checksum.to_bytes(4, "little")
    stage, out = Filter(3, 0, (), ""), np.empty(size, np.uint8)
    Decoder([stage], 1).decode(raw[:-4] + swapped.to_bytes(4, "little"), 0, out)  # as HDF5 1.6.2 wrote it
    assert out.tobytes() == data.tobytes()


@pytest.mark.parametrize("pipeline", [name for name in PIPELINES if name not in ("none", "shuffle")])
def test_damaged_chunks_are_errors_and_never_crash(file: h5py.File, pipeline: str) -> None:
    dataset = dataset_of(file, PIPELINES[pipeline], compressible((40, 30)), (40, 30))
    decoder = decoder_of(dataset)
    [(_, mask, raw)] = stored(dataset)
    out = np.empty(4800, np.uint8)
    for cut in (*range(20), len(raw) // 2, len(raw) - 1):
        with pytest.raises(ValueError):  # noqa: PT011
            decoder.decode(raw[:cut], mask, out)
    rng = np.random.default_rng(3)
    for _ in range(150):
        damaged = bytearray(raw)
        for _ in range(3):
            damaged[rng.integers(min(len(raw), rng.choice([16, len(raw)])))] = rng.choice([0, 1, 127, 128, 255])
        try:
            decoder.decode(bytes(damaged), mask, out)
        except ValueError:
            continue
        assert "fletcher32" not in pipeline or out.tobytes() == dataset[()].tobytes()
    decoder.decode(raw, mask, out)
    assert out.tobytes() == dataset[()].tobytes()


@pytest.mark.parametrize(
    ("pipeline", "raw", "message"),
    [
        ("gzip", b"no zlib stream", "gzip: .*incorrect header"),
        ("gzip", zlib.compress(b"short"), "gzip: 5 bytes, not 48"),
        ("gzip", zlib.compress(bytes(49)), "gzip: 49 bytes, not 48"),
        ("gzip", b"", "gzip: nothing is stored"),
        ("none", bytes(47), "47 bytes, not the 48 of a chunk"),
        ("fletcher32", bytes(48) + b"abcd", "fletcher32: checksum 00000000, but 64636261 is stored"),
        ("fletcher32", b"abc", "too short for a checksum"),
        ("lzf", b"\xff\xff\xff", "lzf: the stream is damaged"),
        ("lz4", bytes(60), "no whole lz4 frame"),
        ("bitshuffle", bytes(60), "no whole bitshuffle frame"),
        ("blosc", bytes(60), "no whole blosc frame"),
        ("zstd", bytes(60), "no whole zstd frame"),
        ("bzip2", bytes(60), "bzip2: Invalid data stream"),
    ],
)
def test_messages(file: h5py.File, pipeline: str, raw: bytes, message: str) -> None:
    dataset = dataset_of(file, PIPELINES[pipeline], compressible((12,)), (12,))
    with pytest.raises(ValueError, match=message):
        decoder_of(dataset).decode(raw, 0, np.empty(48, np.uint8))


def test_out_must_be_plain_bytes() -> None:
    whole = np.zeros(8, np.uint8)
    whole.flags.writeable = False
    for out in (whole, np.zeros(4, np.uint16), np.zeros(16, np.uint8)[::2], np.zeros((2, 4), np.uint8)):
        with pytest.raises(TypeError, match="writable"):
            Decoder([], 1).decode(bytes(8), 0, out)


@pytest.mark.parametrize("pipeline", ["gzip+shuffle+fletcher32", "lzf", *PLUGINS])
def test_threads_share_a_decoder(file: h5py.File, pipeline: str) -> None:
    dataset = dataset_of(file, PIPELINES[pipeline], compressible((512, 100)), (32, 100))
    decoder, whole = decoder_of(dataset), dataset[()]

    def decode(chunk: tuple[tuple[int, ...], int, bytes]) -> bool:
        (row, _), mask, raw = chunk
        out = np.empty(32 * 400, np.uint8)
        if row % 96 == 0:
            with pytest.raises(ValueError):  # noqa: PT011
                decoder.decode(raw[: len(raw) // 2], mask, out)
        decoder.decode(raw, mask, out)
        return out.tobytes() == whole[row : row + 32].tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode, stored(dataset) * 12))


def test_blosc_works_through_its_plugin_too(file: h5py.File, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of(file, PIPELINES["blosc"], compressible((90, 30)), (40, 30))
    monkeypatch.setattr(filter_plugins.plugins.find(32001), "blosc", None)
    decoder = decoder_of(dataset)
    np.testing.assert_array_equal(decoded(dataset, decoder), dataset[()])
    with pytest.raises(ValueError, match="no whole blosc frame"):
        decoder.decode(b"short", 0, np.empty(4800, np.uint8))


class TestWhyNot:
    def test_other_filters_of_hdf5(self, file: h5py.File) -> None:
        dataset = dataset_of(file, {"scaleoffset": 0}, compressible((12,)), (12,))
        assert why_not(filters_of(dataset)) == (
            "compressed with scaleoffset (HDF5 filter 6), which only HDF5 itself can read here"
        )
        with pytest.raises(ValueError, match="scaleoffset"):
            decoder_of(dataset)

    def test_unknown_filters_have_their_own_name(self) -> None:
        for name, shown in (("mine", "mine"), ("", "filter 40000")):
            assert name_of([Filter(40000, 0, (), name)]) == shown
            assert f"compressed with {shown} (HDF5 filter 40000)" in str(why_not([Filter(40000, 0, (), name)]))

    def test_compressed_twice(self) -> None:
        reason = why_not([Filter(2, 0, (4,), ""), Filter(1, 0, (4,), ""), Filter(32000, 0, (), "")])
        assert reason == "compressed more than once (gzip+lzf), which only HDF5 itself can read here"

    def test_h5py_without_lzf(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(h5py.h5z, "__file__", h5py.h5d.__file__)
        assert "compressed with lzf (HDF5 filter 32000), which this build" in str(why_not([Filter(32000, 0, (), "")]))

    @pytest.mark.parametrize(("name", "number"), PLUGINS.items())
    def test_without_hdf5plugin(self, monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
        monkeypatch.setattr(filter_plugins, "plugins", filter_plugins.Plugins())
        monkeypatch.setitem(sys.modules, "hdf5plugin", None)
        monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)
        assert why_not([Filter(number, 0, (), "")]) == (
            f"compressed with {name} (HDF5 filter {number}), which needs the package hdf5plugin: "
            "pip install 'hpc_train[filters]'"
        )
        monkeypatch.setenv("HDF5_PLUGIN_PATH", f"/nowhere:{hdf5plugin.PLUGIN_PATH}")
        assert why_not([Filter(number, 0, (), "")]) is None

    def test_hdf5plugin_without_the_filter(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "libzstd.so").write_text("not a library")
        (tmp_path / "not_a_plugin.so").symlink_to(h5py.h5d.__file__)
        monkeypatch.setattr(filter_plugins, "plugins", filter_plugins.Plugins())
        monkeypatch.setattr(hdf5plugin, "PLUGIN_PATH", str(tmp_path))
        monkeypatch.setenv("HDF5_PLUGIN_PATH", "/nowhere")
        assert why_not([Filter(32015, 0, (), "")]) == (
            f"compressed with zstd (HDF5 filter 32015), for which there is no plugin in /nowhere or {tmp_path}"
        )

    def test_libraries_of_any_name_are_found(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for i, name in enumerate(["bshuf", "zstd", "lz4"]):
            (tmp_path / f"{i}.so").symlink_to(Path(hdf5plugin.PLUGIN_PATH) / f"libh5{name}.so")
        monkeypatch.setattr(filter_plugins, "plugins", filter_plugins.Plugins())
        monkeypatch.setenv("HDF5_PLUGIN_PATH", str(tmp_path))
        monkeypatch.setitem(sys.modules, "hdf5plugin", None)
        assert why_not([Filter(32004, 0, (), "")]) is None
        assert why_not([Filter(32026, 0, (), "")]) is not None

    def test_hdf5plugin_is_imported_only_where_it_is_needed(
        self, file: h5py.File, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(filter_plugins, "hdf5plugin_folder", lambda: pytest.fail("imported"))
        for pipeline in ("none", "gzip+shuffle+fletcher32", "lzf", "bzip2"):
            decoder_of(dataset_of(file, PIPELINES[pipeline], compressible((12,)), (12,)))
            del file["x"]

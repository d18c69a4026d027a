"""Shards and sources that mean harm, made on the fly: a case makes its files in a folder, and says how it is refused.

A fuzzer can start from `small_shards`, whose files are a few kilobytes each.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.support import run_program

ROWS = 10
X = np.arange(ROWS * 2.0).reshape(ROWS, 2)
HUGE = 1 << 52
WIDTH = 4096
"""Of the rows of a chunk that is to hold a bomb: HDF5 stores no more bytes for one than its size lets it count."""
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """Files made by `make` in an empty folder, the message that refuses them, and the consent that is given.

    Attributes:
        arguments: Of a conversion: what `hpc-train shard out` is given; of a shard: its name.
    """

    make: Callable[[Path], object]
    said: str
    external: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ("a.h5",)
    env: tuple[tuple[str, str], ...] = ()


@contextmanager
def shard(path: Path) -> Iterator[h5py.File]:
    """A shard with a label `y`, to which `x` is to be added, and bytes that might be taken for another file's."""
    with h5py.File(path, "w") as file:
        file["y"], file["z"] = np.arange(ROWS), np.full((ROWS, 512), 7.0)
        yield file


def with_x(add: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """A case's only shard, to which `add` adds x; outside.h5 has other numbers, where it might be taken for x."""

    def make(folder: Path) -> None:
        with h5py.File(folder / "outside.h5", "w") as file:
            file["x"], file["g/x"] = X + 100, X + 100
            file["chain"] = h5py.ExternalLink("further.h5", "x")
        with h5py.File(folder / "further.h5", "w") as file:
            file["x"] = X + 200
        with shard(folder / "a.h5") as file:
            add(file)

    return make


def external_link(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("outside.h5", "x")


def soft_to_external(file: h5py.File) -> None:
    file["g"] = h5py.ExternalLink("outside.h5", "g")
    file["x"] = h5py.SoftLink("/g/x")


def chain(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("outside.h5", "chain")


def virtual(source: str, name: str = "x", rows: int = ROWS) -> Callable[[h5py.File], None]:
    def add(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((rows, 2), "f8")
        layout[:] = h5py.VirtualSource(source, name, (rows, 2))
        file.create_virtual_dataset("x", layout, fillvalue=-1)

    return add


def nested_virtual(file: h5py.File) -> None:
    with h5py.File(Path(file.filename).with_name("middle.h5"), "w") as middle:
        virtual("outside.h5")(middle)
    virtual("middle.h5")(file)


def growing_virtual(file: h5py.File) -> None:
    """One that has as many rows as its source, which HDF5 opens to know how many."""
    whole = h5py.h5s.create_simple((0,), (h5py.h5s.UNLIMITED,))
    whole.select_hyperslab((0,), (h5py.h5s.UNLIMITED,))
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.VIRTUAL)
    properties.set_virtual(whole, b"./fifo", b"x", whole)
    space = h5py.h5s.create_simple((ROWS,), (h5py.h5s.UNLIMITED,))
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, properties)
    os.mkfifo(Path(file.filename).with_name("fifo"))


def patterned(file: h5py.File) -> None:
    """A virtual dataset of as many files as there are with names of a pattern."""
    whole = h5py.h5s.create_simple((ROWS, 2), (h5py.h5s.UNLIMITED, 2))
    blocks = whole.copy()
    blocks.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (ROWS, 2), (ROWS, 2))
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.VIRTUAL)
    properties.set_virtual(blocks, b"out-%b.h5", b"x", h5py.h5s.create_simple((ROWS, 2)))
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, whole, properties)


def raw_storage(size: int) -> Callable[[h5py.File], None]:
    def add(file: h5py.File) -> None:
        raw = Path(file.filename).with_name("raw.bin")
        file.create_dataset("x", (ROWS, 2), "f8", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
        raw.write_bytes((X + 100).tobytes()[:size])

    return add


def outside_is(make: Callable[[Path], object], add: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def both(folder: Path) -> None:
        with_x(add)(folder)
        (folder / "outside.h5").unlink()
        make(folder / "outside.h5")

    return both


def declared(shape: tuple[int, ...], dtype: str = "u1", **options: Any) -> Callable[[h5py.File], None]:
    """x, and y with as many rows."""

    def add(file: h5py.File) -> None:
        del file["y"]
        file.create_dataset("y", shape[:1], "u1")
        file.create_dataset("x", shape, dtype, **options)

    return add


def zeros_packed(size: int) -> bytes:
    """A gzip stream of `size` zeros at least, a thousandth as long; it has no end."""
    packer = zlib.compressobj(9)
    first = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * (size // MIB)


def chunk_of(stored: bytes, *filters: tuple[int, tuple[int, ...]], dtype: Any = None) -> Callable[[h5py.File], None]:
    """x in one chunk with these filters, which holds `stored`."""

    def add(file: h5py.File) -> None:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((ROWS, WIDTH))
        for number, values in filters:
            properties.set_filter(number, h5py.h5z.FLAG_OPTIONAL, values)
        space = h5py.h5s.create_simple((ROWS, WIDTH))
        dataset = h5py.h5d.create(file.id, b"x", dtype or h5py.h5t.NATIVE_INT64, space, properties)
        dataset.write_direct_chunk((0, 0), stored)

    return add


def odd_numbers() -> Any:
    odd = h5py.h5t.STD_I64LE.copy()
    odd.set_precision(40)
    return odd


def virtual_over_a_bomb(file: h5py.File) -> None:
    chunk_of(zeros_packed(6 << 30), GZIP)(file)
    file.move("x", "inner")
    layout = h5py.VirtualLayout((ROWS, WIDTH), "i8")
    layout[:] = h5py.VirtualSource(file["inner"])
    file.create_virtual_dataset("x", layout)


def with_lying_filter(folder: Path) -> None:
    """Scale-offset whose parameters, which HDF5 sets itself, speak of more numbers than a chunk has."""
    with_x(chunk_of(bytes(40), SCALEOFFSET))(folder)
    whole, own = (folder / "a.h5").read_bytes(), struct.pack("<III", 2, 0, ROWS * WIDTH)
    assert whole.count(own) == 1
    (folder / "a.h5").write_bytes(whole.replace(own, struct.pack("<III", 2, 0, 1 << 31)))


def circle(file: h5py.File) -> None:
    file["x"], file["w"] = h5py.SoftLink("/w"), h5py.SoftLink("/x")


def of_itself(file: h5py.File) -> None:
    virtual(".", "x")(file)


GZIP, SHUFFLE, SCALEOFFSET = (1, (6,)), (2, (8,)), (6, (2, 0, ROWS * WIDTH, 0, 8, 0, 0, 0))
BLOSC, LZ4, ZSTD = (32001, (2, 2, 8, 160, 5, 1, 0)), (32004, (0,)), (32015, (3,))
FRAMES = {
    "blosc": (BLOSC, struct.pack("<IIII", 0x02010102, 0x7FFFFFFF, 1024, 64) + bytes(48)),
    "lz4": (LZ4, struct.pack(">QI", 1 << 40, 1 << 30) + bytes(52)),
    "zstd": (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + bytes(50)),
}
CONSENT = r"other files are read only where you allow it: give `external`"
TOO_MANY = r"dataset 'x' declares [\d,]+ rows of"

SHARDS: dict[str, Case] = {
    "an external link": Case(with_x(external_link), rf"'x' is a link into outside\.h5: {CONSENT}"),
    "a soft link to an external one": Case(with_x(soft_to_external), rf"'x' is a link into outside\.h5: {CONSENT}"),
    "a chain of external links": Case(with_x(chain), rf"a link into further\.h5: {CONSENT}", ("outside.h5",)),
    "consent to another file": Case(with_x(external_link), CONSENT, ("further.h5", "out*.hdf")),
    "an external link upwards": Case(
        with_x(lambda file: file.__setitem__("x", h5py.ExternalLink("../up.h5", "x"))), CONSENT, ("*", "./up.h5")
    ),
    "a virtual dataset": Case(with_x(virtual("outside.h5")), rf"a virtual dataset of outside\.h5: {CONSENT}"),
    "a virtual one of a virtual one": Case(
        with_x(nested_virtual), rf"a virtual dataset of outside\.h5: {CONSENT}", ("middle.h5",)
    ),
    "a virtual one with a missing source": Case(
        with_x(virtual("gone.h5")), r"'x' lies in gone\.h5, which is missing", ("gone.h5",)
    ),
    "a virtual one with a missing dataset": Case(with_x(virtual("outside.h5", "gone")), "has no 'gone'", ("*.h5",)),
    "a virtual one with too few rows": Case(
        with_x(virtual("outside.h5", rows=ROWS + 1)), r"takes rows of 'x' in outside\.h5 that are not there", ("*.h5",)
    ),
    "a virtual one with a pattern": Case(with_x(patterned), r"pattern \(%\)", ("*",)),
    "a virtual one of itself": Case(with_x(of_itself), "that are not there|virtual datasets more than"),
    "a virtual one as long as a FIFO": Case(with_x(growing_virtual), CONSENT),
    "a virtual one as long as a FIFO, allowed": Case(with_x(growing_virtual), "which is a FIFO, not", ("fifo",)),
    "external storage": Case(with_x(raw_storage(160)), rf"'x' is stored in .*raw\.bin: {CONSENT}"),
    "external storage cut short": Case(with_x(raw_storage(159)), r"raw\.bin, which .* ends too early", ("raw.bin",)),
    "an external link to a FIFO": Case(
        outside_is(os.mkfifo, external_link), r"'x' lies in outside\.h5, which is a FIFO", ("outside.h5",)
    ),
    "an external link to a device": Case(
        outside_is(lambda path: path.symlink_to("/dev/zero"), external_link), "which is a device", ("outside.h5",)
    ),
    "an external link to what is no HDF5": Case(
        outside_is(lambda path: path.write_text("mine"), external_link), "which cannot be read as HDF5", ("outside.h5",)
    ),
    "a virtual one of what is no HDF5": Case(
        outside_is(lambda path: path.write_text("mine"), virtual("outside.h5")), "read as HDF5", ("outside.h5",)
    ),
    "a link that goes round": Case(with_x(circle), "more than 16 links away"),
    "a link to nothing": Case(with_x(lambda file: file.__setitem__("x", h5py.SoftLink("/w/a"))), "leads to nothing"),
    "a virtual one looked for elsewhere": Case(
        with_x(virtual("outside.h5")), "HDF5_VDS_PREFIX has HDF5 look", ("*",), env=(("HDF5_VDS_PREFIX", "/tmp"),)
    ),
    "rows never allocated": Case(with_x(declared((HUGE, 4), "f4")), TOO_MANY),
    "rows in chunks that are not there": Case(
        with_x(declared((HUGE,), chunks=(MIB,))), r"in [\d,]+ chunks, more than a file"
    ),
    "rows in tiny chunks that are not there": Case(with_x(declared((HUGE,), chunks=(1,))), r"in [\d,]+ chunks, more"),
    "rows of nothing": Case(with_x(declared((HUGE, 0))), TOO_MANY),
    "rows that only HDF5 can read": Case(
        with_x(declared((HUGE,), "i4", chunks=(1 << 29,), scaleoffset=0)), "declares|has chunks"
    ),
    "rows behind rows": Case(with_x(declared((1 << 62, 1 << 40), chunks=(1, MIB))), r"in [\d,]+ chunks, more"),
    "wide rows": Case(with_x(declared((ROWS, 1 << 50))), TOO_MANY),
    "chunks of 4 GB": Case(with_x(declared((ROWS,), maxshape=(None,), chunks=((1 << 32) - 1,))), "has chunks of"),
    "a gzip bomb": Case(
        with_x(chunk_of(zeros_packed(6 << 30), GZIP)), r"damaged: 6[\d,]* bytes for a chunk|gzip: more"
    ),
    "a gzip bomb that fits its chunk's size": Case(
        with_x(chunk_of(zeros_packed(300 << 20), GZIP)), "damaged: gzip: more than 327680 bytes"
    ),
    "a small gzip bomb": Case(with_x(chunk_of(zeros_packed(48 << 20), GZIP)), "damaged: gzip: "),
    "gzip of gzip": Case(with_x(chunk_of(zeros_packed(6 << 30), GZIP, GZIP)), "compressed more than once"),
    "a gzip bomb for HDF5": Case(
        with_x(chunk_of(zeros_packed(6 << 30), GZIP, dtype=odd_numbers())),
        "decodes to more than a chunk's 327,680 bytes",
    ),
    "a gzip bomb under scale-offset": Case(
        with_x(chunk_of(zeros_packed(6 << 30), SCALEOFFSET, GZIP)), "decodes to more than a chunk's"
    ),
    "scale-offset of other chunks": Case(with_lying_filter, "a filter scaleoffset for chunks of another size"),
    "a gzip bomb in a virtual one": Case(with_x(virtual_over_a_bomb), "decodes to more than a chunk's"),
    **{
        f"a {name} frame that lies": Case(with_x(chunk_of(data, stage)), f"no whole {name} frame")
        for name, (stage, data) in FRAMES.items()
    },
    **{
        f"a {name} frame that lies to HDF5": Case(
            with_x(chunk_of(data, stage, dtype=odd_numbers())), "decodes to more than a chunk's"
        )
        for name, (stage, data) in FRAMES.items()
    },
    "a FIFO": Case(lambda folder: os.mkfifo(folder / "a.h5"), r"^a\.h5: is a FIFO, not a regular file"),
    "a link to a FIFO": Case(
        lambda folder: (os.mkfifo(folder / "f"), (folder / "a.h5").symlink_to("f")), "is a FIFO, not a regular file"
    ),
    "a folder": Case(lambda folder: (folder / "a.h5").mkdir(), "is a folder, not a regular file"),
    "a device": Case(lambda folder: (folder / "a.h5").symlink_to("/dev/zero"), "is a device, not a regular file"),
    "a socket": Case(lambda folder: listening(folder / "a.h5"), "is a socket, not a regular file"),
    "a link to nowhere": Case(lambda folder: (folder / "a.h5").symlink_to("nowhere"), r"^a\.h5: No such file"),
}


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def gzipped(name: str, pieces: int, piece: bytes, start: bytes = b"", end: bytes = b"") -> Callable[[Path], object]:
    """`start`, `piece` so many times, and `end`, gzipped."""

    def make(folder: Path) -> None:
        with gzip.open(folder / name, "wb", 1) as file:
            file.write(start)
            for _ in range(pieces):
                file.write(piece)
            file.write(end)

    return make


def npy(shape: str, dtype: str = "<f8", length: int | None = None) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header) if length is None else length) + header


def npz(name: str, start: bytes, pieces: int, kind: int = zipfile.ZIP_DEFLATED) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        with zipfile.ZipFile(folder / name, "w", kind) as archive, archive.open("x.npy", "w") as member:
            member.write(start)
            for _ in range(pieces):
                member.write(bytes(MIB))

    return make


def record(length: int) -> bytes:
    """The head of a TFRecord's record."""
    from hpc_train.data.sources.tfrecord import looks_like_tfrecord

    head = struct.pack("<Q", length)
    crc = 0xFFFFFFFF
    for byte in head:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    crc ^= 0xFFFFFFFF
    whole = head + struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
    assert looks_like_tfrecord(whole)
    return whole


def parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet as files

    files.write_table(pa.table({"x": pa.array(np.zeros(100))}), folder / "a.parquet")
    whole = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(whole[:-40] + b"\xff" * 32 + whole[-8:])


SOURCES: dict[str, Case] = {
    "a CSV of one line": Case(gzipped("a.csv.gz", 1024, b"1" * MIB), "has a line of more than 64", (), ("a.csv.gz",)),
    "a CSV whose second line has no end": Case(
        gzipped("a.csv.gz", 1024, b"1" * MIB, b"a,b\n"), "has a line of more than 64 MiB", (), ("a.csv.gz",)
    ),
    "a CSV of a million columns": Case(
        put("a.csv", b"a," * 1_000_000 + b"b\n1\n"), "more than 262,144 columns", (), ("a.csv",)
    ),
    "a .npy of 2^52 rows": Case(put("a.npy", npy(f"({HUGE},)")), r"a\.npy: cut short", (), ("x=a.npy",)),
    "a .npy of minus one row": Case(put("a.npy", npy("(-1, 3)")), r"gives it the shape \(-1, 3\)", (), ("x=a.npy",)),
    "a .npy with a header of 4 GB": Case(
        put("a.npy", npy("(1,)", length=(1 << 32) - 1)), "its header has 4,294,967,295 bytes", (), ("x=a.npy",)
    ),
    "a .npy of objects": Case(put("a.npy", npy("(3,)", "|O")), "does not hold numbers", (), ("x=a.npy",)),
    "a .npy with a header that is deep": Case(
        put("a.npy", npy("-" * 9_000 + "1")), "its header is not that of an array", (), ("x=a.npy",)
    ),
    "a .npy of 2^90 bytes": Case(put("a.npy", npy(f"({HUGE}, {HUGE})")), "cut short|cannot be read", (), ("x=a.npy",)),
    "a .npz with a header of 3 GB": Case(
        npz("a.npz", npy("(1,)", length=3 << 30), 2000), "its header has 3,221,225,472 bytes", (), ("a.npz",)
    ),
    "a .npz of 2^52 rows": Case(npz("a.npz", npy(f"({HUGE},)"), 10), "bytes, not those of its shape", (), ("a.npz",)),
    "a .npz that goes on": Case(npz("a.npz", npy("(10,)"), 1500), "not those of its shape", (), ("a.npz",)),
    "a .npz of a wide row": Case(
        npz("a.npz", npy("(1, 196608000)"), 1500), "rows of 1,572,864,000 bytes, too large", (), ("a.npz",)
    ),
    "a .npz in bzip2": Case(
        npz("a.npz", npy("(196608000,)"), 1500, zipfile.ZIP_BZIP2), "numpy does not write", (), ("a.npz",)
    ),
    "an IDX file of 2^63 bytes": Case(
        gzipped("a.gz", 1, b"", b"\0\0\x08\x02" + b"\x7f\xff\xff\xff" * 2), "too large for|cut short", (), ("x=a.gz",)
    ),
    "a TFRecord of 2^60 bytes": Case(
        put("a.tfrecord", record(1 << 60) + bytes(100)), "record 1 has 1,152,921,504,606,846,976", (), ("a.tfrecord",)
    ),
    "a TFRecord of 1 GB of zeros": Case(
        gzipped("a.tfrecord.gz", 1024, bytes(MIB), record(1 << 30)), "record 1 has 1,073", (), ("a.tfrecord.gz",)
    ),
    "a Parquet file with another footer": Case(parquet, "cannot be read as Parquet", (), ("a.parquet",)),
    "a gzip file that is none": Case(
        put("a.csv.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + b"\xff" * 99), "cannot be read", (), ("a.csv.gz",)
    ),
    "an HDF5 source with an external link": Case(with_x(external_link), CONSENT),
    "an HDF5 source with a virtual dataset": Case(with_x(virtual("outside.h5")), CONSENT),
    "an HDF5 source with a gzip bomb": Case(with_x(chunk_of(zeros_packed(6 << 30), GZIP)), "damaged"),
    "an HDF5 source of 2^52 rows": Case(with_x(declared((HUGE, 4), "f4")), TOO_MANY),
    **{
        f"{what} for {name}": Case(
            lambda folder, make=make, name=name: make(folder / name),
            f"is {what}, not a regular file|no such file",
            (),
            (f"x={name}" if name.endswith(("npy", "idx")) else name,),
        )
        for what, make in (
            ("a FIFO", os.mkfifo),
            ("a device", lambda path: path.symlink_to("/dev/zero")),
            ("a folder", Path.mkdir),
            ("a socket", listening),
        )
        for name in ("a.h5", "a.csv", "a.npy", "a.npz", "a.parquet", "a.tfrecord")
    },
}


def small_shards(folder: Path) -> list[Path]:
    """Shards of all layouts, small enough to try many changes of their bytes."""
    odd = h5py.h5t.STD_I32LE.copy()
    odd.set_precision(24)
    layouts: dict[str, dict[str, Any]] = {
        "contiguous": {},
        "gzip": {"chunks": (3, 2), "compression": "gzip", "shuffle": True},
        "lzf": {"chunks": (4, 1), "compression": "lzf", "fletcher32": True},
        "scaleoffset": {"chunks": (5, 2), "scaleoffset": 0, "dtype": "i4"},
    }
    paths = []
    for name, options in layouts.items():
        for version in ("earliest", "latest"):
            paths.append(folder / f"{name}-{version}.h5")
            with h5py.File(paths[-1], "w", libver=version) as file:
                file["y"] = np.arange(ROWS)
                file.create_dataset("x", data=X.astype(options.get("dtype", "f8")), **options)
    texts = ["", "one", "dé", "four" * 20, *"abcdef"]
    for name in ("heaps", "ends"):
        paths.append(folder / f"{name}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["y"] = np.arange(ROWS)
            if name == "heaps":
                file.create_dataset("x", data=texts, dtype=h5py.string_dtype())
                continue
            file["x/values"] = np.frombuffer("".join(texts).encode(), "S1")
            file["x/ends"] = np.cumsum([len(text.encode()) for text in texts])
    paths.append(folder / "links.h5")
    with h5py.File(paths[-1], "w") as file:
        file["y"] = np.arange(ROWS)
        file["g/x"] = X
        layout = h5py.VirtualLayout((ROWS, 2), "f8")
        layout[:] = h5py.VirtualSource(".", "g/x", (ROWS, 2))
        file.create_virtual_dataset("x", layout)
        file["z"] = h5py.SoftLink("/g/x")
    return paths


MAX_MIB = 1000

PROGRAM = """
import json, os, resource, sys
import numpy as np
from hpc_train import HDF5Input, UserError
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.writing.convert import Options, convert

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
top = os.getcwd()
for line in sys.stdin:
    folder, kind, arguments, external, env = json.loads(line)
    os.chdir(os.path.join(top, folder))
    os.environ.update(env)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        if kind == "shards":
            # as a job whose file was checked by a version that knows no `external`, where that is not needed
            given = {"external": external} if external else {}
            shards = find_shards(HDF5Input(arguments, features="x", label="y", batch_size=2, **given))
            with Reader(shards) as reader:
                said = f"read: {reader.read(np.arange(2))[0].tolist()}"
        else:
            given = {"external": external} if external else {}
            (done,) = convert("out/rows", arguments, Options(shards=1, **given))
            said = f"read: {done.rows} rows"
    except (UserError, OSError) as error:
        said = str(error)
    except BaseException as error:
        said = f"raised {type(error).__name__}: {error}"[:500]
    for name in env:
        del os.environ[name]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([folder, said, grown >> 10]), flush=True)
"""


def wrong_in(kind: str, cases: dict[str, Case], folder: Path) -> list[str]:
    """What the cases show that are not refused as they should be, tried one after the other in one process."""
    lines = []
    for i, case in enumerate(cases.values()):
        (folder / str(i)).mkdir()
        case.make(folder / str(i))
        lines.append(json.dumps([str(i), kind, case.arguments, case.external, dict(case.env)]))
    (folder / "lines").write_text("\n".join(lines))
    done = run_program(["bash", "-c", f"{sys.executable} -c '{PROGRAM}' < lines"], folder)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    wrong = [f"ended after {len(found)} of {len(cases)}: {done.stderr[-1000:]}"] if len(found) < len(cases) else []
    for (name, case), (_, said, mib) in zip(cases.items(), found, strict=False):
        if not re.search(case.said, said) or said.startswith(("read", "raised")) or "\n" in said:
            wrong.append(f"{name}: {said[:400]}")
        if mib > MAX_MIB:
            wrong.append(f"{name}: {mib} MiB")
    return wrong

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpc_train import UserError
from hpc_train.data.writing.convert import Options, convert, read_idx
from tests.support import environment
from tests.unit.data.writing.test_writer import joined

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 4, 3)).astype(np.uint8)
LABELS = np.arange(60)


def write(folder: Path, *sources: str, **options: object) -> dict[str, np.ndarray]:
    """Converts files of `folder`, and reads the shards."""
    out = folder / "out"
    for old in out.glob("*.h5") if out.exists() else ():
        old.unlink()
    named = [
        f"{name}={folder / file}" if file else str(folder / name)
        for name, _, file in (s.partition("=") for s in sources)
    ]
    convert(out / "train", named, Options(**{"shards": 3, **options}))
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == [".train.plan.json"]
    return joined(out)


def refusal(folder: Path, *sources: str, **options: object) -> str:
    """What is said of sources that cannot be used; nothing is written then."""
    with pytest.raises(UserError) as error:
        write(folder, *sources, **options)
    assert not (folder / "out").exists()
    return str(error.value).replace(f"{folder}/", "")


def idx(array: np.ndarray, code: int) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """The same images and labels as files of all formats that hold whole arrays."""
    np.save(tmp_path / "i.npy", IMAGES)
    np.save(tmp_path / "f.npy", np.asfortranarray(IMAGES))
    np.save(tmp_path / "l.npy", LABELS.astype(">i8"))
    np.savez(tmp_path / "stored.npz", image=IMAGES, label=LABELS)
    np.savez_compressed(tmp_path / "deflated.npz", image=IMAGES, label=LABELS)
    (tmp_path / "i-idx3-ubyte").write_bytes(idx(IMAGES, 8))
    (tmp_path / "i.idx.gz").write_bytes(gzip.compress(idx(IMAGES, 8)))
    (tmp_path / "l.idx.gz").write_bytes(gzip.compress(idx(LABELS.astype(">i4"), 0x0C)))
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["image"], file["label"] = IMAGES, LABELS
        file.create_group("more")
    with h5py.File(tmp_path / "chunked.hdf5", "w") as file:
        file.create_dataset("image", data=IMAGES, chunks=(7, 4, 3), **hdf5plugin.Zstd())
        file.create_dataset("label", data=LABELS.astype(">i8"), chunks=(11,), compression="gzip")
    return tmp_path


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "sources",
    [
        ["image=i.npy", "label=l.npy"],
        ["image=f.npy", "label=l.npy"],
        ["stored.npz"],
        ["deflated.npz"],
        ["image=i-idx3-ubyte", "label=l.npy"],
        ["image=i.idx.gz", "label=l.idx.gz"],
        ["plain.h5"],
        ["chunked.hdf5"],
    ],
)
def test_arrays_of_all_formats(arrays: Path, sources: list[str], shuffle: bool) -> None:
    found = write(arrays, *sources, shuffle=shuffle)
    assert found["image"].dtype == np.uint8
    assert found["label"].dtype.isnative
    assert sorted(found["label"]) == LABELS.tolist() != found["label"].tolist() or not shuffle
    np.testing.assert_array_equal(found["image"], IMAGES[found["label"]])
    if len(sources) == 1:
        assert write(arrays, *sources, columns="label", shuffle=shuffle).keys() == {"label"}


def test_files_with_the_same_columns_follow_each_other(arrays: Path) -> None:
    found = write(arrays, "stored.npz", "deflated.npz", "chunked.hdf5", shuffle=True)
    assert sorted(found["label"]) == sorted([*LABELS] * 3)
    np.testing.assert_array_equal(found["image"], IMAGES[found["label"]])
    (arrays / "m.npy").write_bytes((arrays / "l.npy").read_bytes())
    found = write(arrays, "image=i.npy", "image=i.idx.gz", "label=[lm].npy")
    assert found["label"].tolist() == [*LABELS] * 2
    np.testing.assert_array_equal(found["image"], IMAGES[found["label"]])


def test_what_arrays_are_refused(arrays: Path) -> None:
    np.savez(
        arrays / "objects.npz",
        x=np.arange(3),
        names=np.array(["a", "b"]),
        o=np.array([None, 1], object),
        n=np.float32(1),
    )
    np.savez_compressed(arrays / "fortran.npz", x=np.asfortranarray(IMAGES.reshape(60, 12)))
    whole = (arrays / "i.npy").read_bytes()
    (arrays / "cut.npy").write_bytes(whole[:-1])
    (arrays / "cut.npz").write_bytes((arrays / "stored.npz").read_bytes()[:-30])
    (arrays / "empty.npy").write_bytes(b"")
    with h5py.File(arrays / "uneven.h5", "w") as file:
        file["x"], file["y"] = np.arange(3), np.arange(4)
    (arrays / "cut.h5").write_bytes((arrays / "plain.h5").read_bytes()[:-100])
    for sources, said in (
        (["objects.npz"], "objects.npz: cannot write 'o' (object [2] does not hold numbers or texts in rows); 'n' ("),
        (["fortran.npz"], "fortran.npz: cannot write 'x' (it is compressed in Fortran order"),
        (["x=cut.npy"], "cut.npy: cut short: 1 bytes are missing"),
        (["cut.npz"], "cut.npz: cannot be read: File is not a zip file"),
        (["x=empty.npy"], "empty.npy: is empty"),
        (["uneven.h5"], "uneven.h5: columns of different lengths: x has 3 rows, y has 4 rows"),
        (["cut.h5"], "cut.h5: cannot be read as HDF5: "),
        (["i.npy"], "i.npy: gives its column no name; write NAME=i.npy"),
        (["x=stored.npz"], "x=stored.npz: the file names its columns itself"),
        (["stored.npz", "image=i.npy"], "i.npy gives image, but stored.npz gives image, label: files that follow"),
        (["stored.npz", "x=i.npy", "x=i-idx3-ubyte"], "columns of different lengths: stored.npz has 60 rows, i.npy … "),
        (["stored.npz", "stored.npz"], "stored.npz: named twice"),
        (["none-*.npz"], "none-*.npz: no such file"),
    ):
        assert refusal(arrays, *sources).startswith(said), sources
    (arrays / "bad.idx.gz").write_bytes(gzip.compress(idx(IMAGES, 8))[:-20])
    assert "bad.idx.gz: cannot be read: Compressed file ended" in refusal(arrays, "x=bad.idx.gz", shuffle=True)
    assert write(arrays, "objects.npz", columns="x", shards=1)["x"].tolist() == [0, 1, 2]


def test_idx_files_are_read_whole_too(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(idx(IMAGES, 8))
    (tmp_path / "zipped.gz").write_bytes(gzip.compress(idx(np.array([1, -2], ">i2"), 0x0B)))
    np.testing.assert_array_equal(read_idx(tmp_path / "plain"), IMAGES)
    assert read_idx(tmp_path / "zipped.gz").tolist() == [1, -2]
    for name, content in (
        ("cut", idx(IMAGES, 8)[:-1]),
        ("text", b"hello"),
        ("short", b"\0\0\x08\x03\0"),
        ("empty", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: (not an IDX file|IDX file cut short)"):
            read_idx(tmp_path / name)


def test_parquet(tmp_path: Path) -> None:
    flat = pa.array(IMAGES.ravel())
    table = pa.table(
        {
            "image": pa.FixedSizeListArray.from_arrays(flat, 12),
            "list": pa.array([row.tolist() for row in IMAGES.reshape(60, 12)]),
            "label": LABELS,
            "half": LABELS.astype(np.float16),
            "even": LABELS % 2 == 0,
            "name": [f"né{k % 3}" for k in range(60)],
        }
    )
    pq.write_table(table.slice(0, 40), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(40), tmp_path / "b.parquet")
    whole = write(tmp_path, "*.parquet")
    assert whole["name"].tolist() == [f"né{k % 3}" for k in range(60)]
    assert whole["list"].tolist() == IMAGES.reshape(60, 12).tolist()
    (tmp_path / "out").rename(tmp_path / "whole")
    columns = "image,list,label,half,even"
    for shuffle in (False, True):
        found = write(
            tmp_path, "*.parquet", columns=columns, dtype=["image=uint8[4,3]", "list=uint8[4,3]"], shuffle=shuffle
        )
        np.testing.assert_array_equal(found["image"], IMAGES[found["label"]])
        np.testing.assert_array_equal(found["list"], found["image"])
        assert (found["half"].dtype, found["even"].dtype) == (np.float16, bool)
        assert (found["even"] == (found["label"] % 2 == 0)).all()
    pq.write_table(pa.table({"x": [1, 2, None], "l": [[1, 2], [3], [4, 5]]}), tmp_path / "n.parquet")
    (tmp_path / "out").rename(tmp_path / "done")
    assert "n.parquet: column 'x' has no value in row 3" in refusal(tmp_path, "n.parquet", columns="x")
    assert "lists of 1 to 2 values in rows 1 to 3, not of 2" in refusal(
        tmp_path, "n.parquet", columns="l", dtype=["l=int8[2]"]
    )
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    assert refusal(tmp_path, "cut.parquet").startswith("cut.parquet: cannot be read as Parquet: ")


TFRECORDS = """
import sys, numpy as np
import os; os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
import tensorflow as tf
from hpc_train.data.writing.convert import Options, convert
from hpc_train.errors import UserError

def features(i):
    image = np.full((2, 3), i, "<u2")
    return {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i, i / 2])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[i])),
        "jpeg": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"\\xff\\xd8\\xff" + b"0" * (i % 3)])),
        "words": tf.train.Feature(int64_list=tf.train.Int64List(value=range(i % 4))),
        "said": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"n° {i}".encode()])),
    }

def write(path, rows, options=None, **others):
    with tf.io.TFRecordWriter(path, options) as file:
        for i in rows:
            found = {**features(i), **others}
            file.write(tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString())

def refusal(*sources, **options):
    try:
        convert("refused/t", sources, Options(**options))
    except UserError as error:
        print(error)

write("a.tfrecord-00000-of-00002", range(100))
write("a.tfrecord-00001-of-00002", range(100, 150), "GZIP")
decode = {"columns": "image,x,label,words,said", "dtype": ["image=uint16[2,3]", "said=text"]}
convert("plain/t", ["a.tfrecord-*"], Options(**decode))
convert("shuffled/t", ["a.tfrecord-*"], Options(shuffle=True, **decode))
write("b.tfrecord", range(100))
write("bad.tfrecord", range(100))
data = open("b.tfrecord", "rb").read()
open("cut.tfrecord", "wb").write(data[:-5])
short = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"123"]))
with tf.io.TFRecordWriter("bad.tfrecord") as file:
    for i in range(100):
        found = features(i) | ({"image": short} if i == 80 else {})
        file.write(tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString())
refusal("b.tfrecord")
refusal("b.tfrecord", columns="image", dtype=["image=uint8[2,3]"])
refusal("bad.tfrecord", **decode)
refusal("cut.tfrecord", **decode)
"""


def test_tfrecord(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TFRECORDS], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    for folder in ("plain", "shuffled"):
        found = joined(tmp_path / folder, "t")
        label = found["label"]
        assert sorted(label) == list(range(150))
        assert (found["image"].dtype, found["image"].shape) == (np.uint16, (150, 2, 3))
        assert (found["image"] == label[:, None, None]).all()
        assert found["words"].tolist() == [list(range(k % 4)) for k in label]
        assert found["said"].tolist() == [f"n° {k}" for k in label]
        assert (found["x"] == np.stack([label, label / 2], axis=1).astype(np.float32)).all()
    whole, decoded, bad, cut = done.stdout.splitlines()
    assert "b.tfrecord: cannot write 'image' (12 bytes in the first record; say what they are, as in --dtype" in whole
    assert "'jpeg' (JPEG images; decode them with tf.io.decode_image" in whole
    assert "--columns label,words,x leaves" in whole
    assert "'image' (12 bytes in the first record, which is not uint8[2, 3])" in decoded
    assert "bad.tfrecord: record 81: feature 'image' has 3 bytes, not 12" in bad
    assert "cut.tfrecord: record 100 cannot be read: " in cut
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": ["image=uint9"]}, "'uint9' is not TYPE or TYPE[SHAPE], as in uint8[28,28]; types are bool, int8"),
        ({"dtype": ["image=uint9"]}, "(did you mean uint8?)"),
        ({"dtype": ["image=uint8[4,"]}, "is not TYPE or TYPE[SHAPE]"),
        ({"dtype": ["image=uint8[5,3]"]}, "column 'image' has 12 values a row, but --dtype image=uint8[5, 3] has 15"),
        ({"dtype": ["label=int8", "label=int8"]}, "give NAME=TYPE or NAME=TYPE[SHAPE], once a column"),
        (
            {"dtype": ["imge=uint8"]},
            "--dtype: nothing gives a column 'imge'; did you mean `image`? the columns are image, label",
        ),
        ({"dtype": ["image=int8"]}, "which is no int8 (whole numbers from -128 to 127)"),
        ({"dtype": ["label=bool"]}, "stored.npz: column 'label' has 2 in row 3, which is no bool (0 and 1)"),
        ({"dtype": ["int8", "int16"]}, "or a TYPE of numbers, once a kind"),
        ({"columns": "label,x"}, "--columns: nothing gives a column 'x'; the columns are image, label"),
        ({"columns": "label,label"}, "--columns label,label: give each name once"),
        ({"stack": ["x"]}, "--stack x: give NAME=FIRST..LAST or NAME=A,B,C"),
        ({"stack": ["x=a..b"]}, "--stack: nothing gives a column 'x'"),
        ({"stack": ["x=label,a"]}, "--stack x: stored.npz has no column 'a'; it has image, label"),
        ({"stack": ["x=image,label"]}, "column 'x' can stack only columns of single numbers"),
        ({"shards": 100_000}, "--shards 100000: give 1 to 99999"),
        ({"seed": -1}, "--seed -1: give 0 or more"),
        ({"compression": "gz"}, "compression 'gz': give one of none, gzip"),
    ],
)
def test_options_that_are_refused(arrays: Path, options: dict[str, object], said: str) -> None:
    assert said in refusal(arrays, "stored.npz", **options)


def test_types_are_converted_where_every_value_fits(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "s.npz", f=np.array([1.0, 2, 255]), g=np.array([0.5, 1e300]), i=np.arange(3), b=np.arange(3) > 1
    )
    found = write(tmp_path, "s.npz", columns="f,i,b", dtype=["f=uint8", "int16", "b=int8"], shards=1)
    assert {name: str(array.dtype) for name, array in found.items()} == {"f": "uint8", "i": "int16", "b": "int8"}
    assert found["f"].tolist() == [1, 2, 255]
    (tmp_path / "out").rename(tmp_path / "done")
    for dtype, said in (
        ("g=float32", "column 'g' has 1e+300 in row 2, which is no float32"),
        ("g=int64", "column 'g' has 0.5 in row 1, which is no int64"),
    ):
        assert said in refusal(tmp_path, "s.npz", columns="g", dtype=[dtype], shards=1)


def test_a_path_with_an_equals_sign_is_a_path(arrays: Path) -> None:
    (arrays / "year=2020").mkdir()
    (arrays / "stored.npz").rename(arrays / "year=2020" / "s.npz")
    convert(arrays / "o", [str(arrays / "year=2020" / "*.npz")], Options())
    assert joined(arrays, "o")["label"].tolist() == LABELS.tolist()

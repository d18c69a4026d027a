from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  registers the filters that some of these files have
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.data import write_shards
from hpc_train.data.hdf5.layout import Chunked, Contiguous, layout_of
from hpc_train.data.sources.split import BY_NAMES
from hpc_train.data.writing import resume_plan, writer
from hpc_train.data.writing.convert import Options, convert
from hpc_train.data.writing.storage import COMPRESSIONS
from tests.support import LIMIT_SECS, environment, examples

COMMAND = [sys.executable, "-m", "hpc_train", "shard"]


def shard(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `hpc-train shard` in `folder`."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600)


def rows_of(group: h5py.Group) -> np.ndarray:
    """Rows of different lengths, as objects: texts as str, numbers as lists."""
    values, ends = group["values"][()], group["ends"][()].reshape(-1).tolist()
    rows = [values[first:end] for first, end in zip([0, *ends], ends, strict=False)]
    found = np.empty(len(rows), object)
    found[:] = [row.tobytes().decode() if values.dtype.kind == "S" else row.tolist() for row in rows]
    return found.reshape(group["ends"].shape)


def joined(folder: Path, prefix: str = "train") -> dict[str, np.ndarray]:
    """All rows of the shards of a prefix."""
    parts: dict[str, list[np.ndarray]] = {}
    for path in sorted(folder.glob(f"{prefix}-*.h5")):
        with h5py.File(path) as file:
            for name, dataset in file.items():
                group = isinstance(dataset, h5py.Group)
                parts.setdefault(name, []).append(rows_of(dataset) if group else dataset[()])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def contents(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Everything in a shard, to the bit."""
    with h5py.File(path) as file:
        found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}

        def note(name: str, item: h5py.Dataset | h5py.Group) -> None:
            if isinstance(item, h5py.Dataset):
                found[name] = (item.dtype.str, item.shape, item[()].tobytes())

        file.visititems(note)
        return found


def test_shards_are_written_whole_with_a_schema(tmp_path: Path) -> None:
    x, y = np.arange(30).reshape(10, 3).astype(np.uint8), np.arange(10)
    paths = write_shards(tmp_path / "new" / "train", {"x": x, "y": y}, shards=3)
    assert [p.name for p in sorted((tmp_path / "new").iterdir())] == [p.name for p in paths]
    for path in paths:
        with h5py.File(path) as file:
            schema = json.loads(file.attrs["hpc_train_schema"])
            assert schema["columns"]["x"] == {"shape": [3], "dtype": "uint8"}
            assert schema["rows"] == len(file["y"]) in (3, 4)
    assert joined(tmp_path / "new")["y"].tolist() == y.tolist()
    with pytest.raises(UserError, match="already there, with 2 more"):
        write_shards(tmp_path / "new" / "train", {"x": x}, shards=2)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({}, {}, "no columns"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, {}, "different lengths: x has 3 rows, y has 4 rows"),
        ({"x": np.zeros(3)}, {"shards": 4}, "cannot write 3 rows to 4 shards"),
        ({"x": ["a", 1]}, {}, "column 'x': row 1 is int, not a text"),
        ({"x": [[1], "a"]}, {}, "column 'x': row 1 is str; a list has texts, or rows of numbers"),
        ({"x": [[1], [[2]]]}, {}, "column 'x': row 1 is int64 .1, 1.; the first ones are int64 .any"),
        ({"x": [b"caf\xe9"]}, {}, "column 'x' has in row 1 what is not text in UTF-8"),
        ({"x": np.array(3.0)}, {}, "does not hold numbers"),
        ({"a/b": np.zeros(3)}, {}, "no '/'"),
        ({"x": np.zeros(3)}, {"compression": "gzip-10"}, "give one of none, gzip"),
        ({"x": np.zeros(3)}, {"chunk_rows": 0}, "give 1 or more"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, columns: dict[str, np.ndarray], options: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        write_shards(tmp_path / "out" / "x", columns, **{"shards": 1, **options})
    assert not (tmp_path / "out").exists()


@settings(max_examples=examples(30))
@given(
    st.integers(1, 200),
    st.integers(1, 5),
    st.sampled_from(["<u1", ">i4", "<f8", "<f2", "?", ">c8"]),
    st.sampled_from([(), (3,), (2, 2)]),
    st.sampled_from(COMPRESSIONS),
    st.sampled_from([None, 1, 7, 1000]),
    st.booleans(),
)
def test_rows_come_back_whatever_the_storage(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    shards: int,
    dtype: str,
    shape: tuple[int, ...],
    compression: str,
    chunk_rows: int | None,
    shuffle: bool,
) -> None:
    folder, shards = tmp_path_factory.mktemp("shards"), min(rows, shards)
    x = (np.random.default_rng(rows).random((rows, *shape)) * 200).astype(dtype)
    columns = {"x": x, "y": np.arange(rows)}
    write_shards(
        folder / "train", columns, shards, shuffle=shuffle, seed=3, compression=compression, chunk_rows=chunk_rows
    )
    found = joined(folder)
    assert (sorted(found["y"]) if shuffle else found["y"].tolist()) == list(range(rows))
    np.testing.assert_array_equal(found["x"], x[found["y"]])
    with h5py.File(folder / "train-00000.h5") as file:
        layout = layout_of(file["x"])
    if compression == "none" and chunk_rows is None:
        assert isinstance(layout, Contiguous)
    else:
        assert isinstance(layout, Chunked)
        assert chunk_rows is None or layout.chunk[0] <= chunk_rows


def test_contiguous_data_is_aligned_and_chunks_have_about_256_kib(tmp_path: Path) -> None:
    x = np.zeros((3000, 784), np.float32)
    write_shards(tmp_path / "a", {"x": x, "y": np.arange(3000)}, shards=2)
    write_shards(tmp_path / "b", {"x": x, "y": np.arange(3000)}, shards=2, compression="lzf")
    with h5py.File(tmp_path / "a-00000.h5") as a, h5py.File(tmp_path / "b-00000.h5") as b:
        assert [a[name].id.get_offset() % 4096 for name in "xy"] == [0, 0]
        assert b["x"].chunks == ((256 << 10) // 3136, 784)
        assert b["x"].shuffle


def test_a_shuffle_is_one_permutation_of_all_rows_chosen_by_the_seed(tmp_path: Path) -> None:
    rows = np.arange(5000)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_shards(
            tmp_path / name, {"x": rows, "wide": np.repeat(rows, 300).reshape(5000, 300)}, 3, shuffle=True, seed=seed
        )
    a, b, c = (joined(tmp_path, name) for name in "abc")
    assert a["x"].tolist() == b["x"].tolist() != c["x"].tolist()
    assert sorted(a["x"]) == rows.tolist()
    assert (a["wide"] == a["x"][:, None]).all()
    assert abs(np.corrcoef(a["x"], rows)[0, 1]) < 0.1


def test_hdf5_datasets_are_sources_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file.create_dataset("x", data=np.arange(1000).reshape(100, 10), chunks=(7, 10), compression="gzip")
        write_shards(tmp_path / "train", {"x": file["x"]}, 3, shuffle=True)
    assert sorted(joined(tmp_path)["x"][:, 0]) == list(range(0, 1000, 10))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "s.npz", x=random.random((40_000, 100)), y=np.arange(40_000))
    return tmp_path / "s.npz"


def kill_when(condition, folder: Path, *arguments: str) -> None:
    """Starts `hpc-train shard` and kills it as soon as `condition` holds."""
    with subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=environment()) as process:
        end = time.monotonic() + LIMIT_SECS
        while not condition():
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < end
        process.send_signal(signal.SIGKILL)


def test_a_killed_run_goes_on_and_ends_as_if_undisturbed(source: Path) -> None:
    folder = source.parent
    arguments = ["s.npz", "--shards", "20", "--compression", "gzip", "--shuffle"]
    kill_when(lambda: (folder / "train-00003.h5").exists(), folder, "train", *arguments)
    there = sorted(folder.glob("train-*.h5"))
    assert 4 <= len(there) < 20
    for path in there:
        with h5py.File(path) as file:
            assert file["x"].shape == (2000, 100)
    kept = {path: path.stat().st_ino for path in there}

    changed = shard(folder, "train", *arguments[:-1], "--seed", "1")
    assert changed.returncode == 2
    assert "--shuffle was on and is off; --seed was 0 and is 1" in changed.stderr
    assert "remove train-*.h5 to start anew" in changed.stderr

    again = shard(folder, "train", *arguments)
    assert again.returncode == 0, again.stderr
    assert f"20 files ({len(there)} of them from an earlier run)" in again.stdout
    assert {path: path.stat().st_ino for path in there} == kept
    convert(folder / "whole", [str(source)], Options(20, shuffle=True, compression="gzip"))
    for path in sorted(folder.glob("whole-*.h5")):
        assert contents(path) == contents(folder / path.name.replace("whole", "train"))
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".train")]
    assert hidden == [".train.plan.json"]

    os.utime(source, ns=(1, 1))
    with pytest.raises(UserError, match=r"s\.npz has changed since"):
        convert(folder / "train", [str(source)], Options(20, shuffle=True, compression="gzip"))


def test_a_killed_run_that_splits_goes_on_and_never_mixes(source: Path) -> None:
    folder = source.parent
    arguments = ["s.npz", "--shards", "10", "--compression", "gzip", "--split", "0.4"]
    (folder / "data").mkdir()
    kill_when(lambda: (folder / "data/train-00002.h5").exists(), folder, "data", *arguments)
    kept = {path: path.stat().st_ino for path in (folder / "data").glob("*.h5")}
    assert not any(path.name.startswith("test") for path in kept)

    changed = shard(folder, "data", *arguments, "--seed", "1")
    assert changed.returncode == 2
    assert "--seed was 0 and is 1. Give that command again to go on" in changed.stderr
    assert "remove data/train-*.h5 to start anew" in changed.stderr
    kill_when(lambda: (folder / "data/test-00001.h5").exists(), folder, "data", *arguments)
    for path in (folder / "data").glob("train-*.h5"):
        path.unlink()
    changed = shard(folder, "data", *arguments, "--seed", "1")
    assert "remove data/test-*.h5 to start anew" in changed.stderr, "those of the other seed are not mixed with"

    again = shard(folder, "data", *arguments)
    assert again.returncode == 0, again.stderr
    assert "from an earlier run): data/test-00000.h5" in again.stdout
    convert(folder / "whole", [str(source)], Options(10, split=0.4))
    for name in ("train", "test"):
        for file in sorted((folder / "whole").glob(f"{name}-*.h5")):
            assert contents(file) == contents(folder / "data" / file.name)
    assert sorted([*joined(folder / "data")["y"], *joined(folder / "data", "test")["y"]]) == list(range(40_000))
    hidden = sorted(path.name for path in (folder / "data").iterdir() if path.name.startswith("."))
    assert hidden == [".test.plan.json", ".train.plan.json"]
    other = shard(folder, "data/train", "s.npz", "--shards", "10", "--compression", "gzip")
    assert "--split was 0.4 and is not given" in other.stderr


def test_a_set_that_another_command_wrote_is_refused_before_anything_is_written(source: Path) -> None:
    folder = source.parent
    convert(folder / "data/test", [str(source)], Options(compression="lzf", shards=8))
    with pytest.raises(UserError, match=r"test-00000\.h5: already there, with 7 more, from another command: --compr"):
        convert(folder / "data", [str(source)], Options(split=0.1))
    assert not any((folder / "data").glob("*train*"))
    np.savez(folder / "v.npz", x_train=np.arange(9), x_val=np.arange(3))
    convert(folder / "sets", [str(folder / "v.npz")], Options(3, split=BY_NAMES))
    for path in (folder / "sets").glob("train-*.h5"):
        path.unlink()
    with pytest.raises(UserError, match=r"val-00000\.h5: already there, with 0 more, of another --split, which this"):
        convert(folder / "sets", [str(source)], Options(3, split=0.5))
    with (
        resume_plan.alone(folder / "more/test"),
        pytest.raises(UserError, match="more/test: another process is writing these shards"),
    ):
        convert(folder / "more", [str(source)], Options(split=0.1))


def test_a_run_killed_while_it_spools_starts_its_spool_again(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i * 0.5}\n" for i in range(600_000))
    (tmp_path / "s.csv").write_text("i,half\n" + rows)
    kill_when(lambda: any(tmp_path.glob("..train.spool-0.*.tmp")), tmp_path, "train", "s.csv")
    assert not any(tmp_path.glob("train-*"))
    done = shard(tmp_path, "train", "s.csv")
    assert done.returncode == 0, done.stderr
    assert joined(tmp_path)["half"].tolist() == [i * 0.5 for i in range(600_000)]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == [".train.plan.json"]


def test_a_whole_spool_of_a_killed_run_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.csv").write_text("i\n1\n2\n3\n")

    def full(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("hpc_train.data.writing.writer.write_shard", full)
        with pytest.raises(OSError, match="no space"):
            convert(tmp_path / "a", [str(tmp_path / "s.csv")], Options(2))
    assert (tmp_path / ".a.spool-0").exists()
    monkeypatch.setattr("hpc_train.data.writing.writer.fill", full)
    convert(tmp_path / "a", [str(tmp_path / "s.csv")], Options(2))
    assert joined(tmp_path, "a")["i"].tolist() == [1, 2, 3]
    assert not (tmp_path / ".a.spool-0").exists()


def test_a_split_that_ended_between_its_sets_goes_on_with_its_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.csv").write_text("i\n" + "".join(f"{i}\n" for i in range(100)))
    options, write = Options(4, split=0.3, shuffle=True), writer.write_shard

    def full(path: Path, *arguments: object) -> None:
        if path.name.startswith("test"):
            raise OSError("no space")
        write(path, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_shard", full)
        with pytest.raises(OSError, match="no space"):
            convert(tmp_path / "a", [str(tmp_path / "s.csv")], options)
    (tmp_path / "b").mkdir()
    convert(tmp_path / "b", [str(tmp_path / "s.csv")], options)
    monkeypatch.setattr(writer, "fill", full)
    train, test = convert(tmp_path / "a", [str(tmp_path / "s.csv")], options)
    assert (train.kept, test.kept) == (4, 0)
    for name in ("train", "test"):
        assert joined(tmp_path / "a", name)["i"].tolist() == joined(tmp_path / "b", name)["i"].tolist()
    assert not any((tmp_path / "a").glob(".*spool*"))


def test_shards_that_this_command_did_not_write_are_refused(source: Path) -> None:
    folder = source.parent
    write_shards(folder / "train", {"x": np.zeros(4)}, 2)
    with pytest.raises(UserError, match="already there, with 1 more, and not from this command"):
        convert(folder / "train", [str(source)], Options())
    convert(folder / "other", [str(source)], Options(4))
    (folder / "other-00002.h5").write_bytes(b"")
    with pytest.raises(UserError, match=r"other-00002.h5: is not the shard that this command writes; remove it"):
        convert(folder / "other", [str(source)], Options(4))
    (folder / "other-00002.h5").unlink()
    assert convert(folder / "other", [str(source)], Options(4))[0].kept == 3
    assert joined(folder, "other")["y"].tolist() == list(range(40_000))


def test_one_writer_at_a_time(source: Path) -> None:
    folder = source.parent
    with resume_plan.alone(folder / "train"), pytest.raises(UserError, match="another process is writing these shards"):
        convert(folder / "train", [str(source)], Options())
    convert(folder / "train", [str(source)], Options())


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_a_full_disk_is_told_in_a_sentence(source: Path, compression: str) -> None:
    """A limit on a file's size stands in for the disk: writing past it fails in the same places."""
    command = " ".join([*COMMAND, "out/train", "s.npz", "--compression", compression])
    limited = f"trap '' XFSZ; ulimit -f 3000; exec {command}"
    done = subprocess.run(
        ["bash", "-c", limited],
        cwd=source.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    said = "hpc-train: error: out/train-00000.h5: cannot be written: File too large; what was finished is kept"
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in (source.parent / "out").iterdir()] == [".train.plan.json"]
    assert shard(source.parent, "out/train", "s.npz", "--compression", compression).returncode == 0


@pytest.mark.parametrize(
    ("kind", "options"),
    [("stored", {"shuffle": True}), ("deflated", {}), ("stored", {"compression": "lzf", "chunk_rows": 100})],
)
def test_memory_does_not_grow_with_the_source(tmp_path: Path, kind: str, options: dict) -> None:
    zipped = zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED
    piece = np.tile(np.arange(784, dtype=np.float32), (10_000, 1)).tobytes()
    header = {"descr": "<f4", "fortran_order": False, "shape": (130_000, 784)}
    with (
        zipfile.ZipFile(tmp_path / "s.npz", "w", zipped, compresslevel=1) as archive,
        archive.open("x.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(13):
            member.write(piece)
    program = (
        "import sys; from pathlib import Path; from hpc_train.data.writing.convert import Options, convert\n"
        f"convert('o/train', ['s.npz'], Options(**{options}))\n"
        "print(next(line for line in Path('/proc/self/status').read_text().splitlines() if 'VmHWM' in line).split()[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) << 10 < 200e6, "of 408 MB"


def test_the_command_line(source: Path) -> None:
    folder = source.parent
    done = shard(folder, "out/train", "s.npz", "--shards", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "40000 rows of x, y in 3 files: out/train-00000.h5 … train-00002.h5\n"
    for arguments, said in (
        (["o/t", "none.npz"], "none.npz: no such file"),
        (["o/t", "s.npz", "--shards", "40001"], "cannot write 40000 rows to 40001 shards: between 1 and 40000"),
        (["o/", "s.npz"], "PREFIX o/: give the beginning of the file names too"),
        (["s.npz/t", "s.npz"], "s.npz/t: cannot be written: s.npz is no folder"),
    ):
        done = shard(folder, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"hpc-train: error: {said}")
        assert not (folder / "o").exists()
    shown = shard(folder, "--help").stdout
    assert "Usage: hpc-train shard [OPTIONS]" in shown
    assert "hpc-train shard inspect FILES" in shown

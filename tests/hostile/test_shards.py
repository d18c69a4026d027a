"""Shards that mean harm: nothing outside of them is read without consent, and nothing that they declare is believed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.data.hdf5.input_file import OutsideError
from hpc_train.data.hdf5.layout import Opaque
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.ragged import Ragged, first_invalid
from hpc_train.data.writing.convert import Options, convert
from hpc_train.data.writing.inspect import inspect
from hpc_train.errors import UserError
from tests.hostile.data_corpus import (
    ROWS,
    SHARDS,
    X,
    chain,
    external_link,
    nested_virtual,
    raw_storage,
    small_shards,
    soft_to_external,
    virtual,
    with_x,
    wrong_in,
)
from tests.hostile.fuzz import CHANGES, changed, count, in_a_child
from tests.support import examples


def test_they_are_refused_in_one_sentence_and_bounded_memory(tmp_path: Path) -> None:
    wrong = wrong_in("shards", SHARDS, tmp_path)
    assert not wrong, "\n".join(wrong)


ALLOWED = {
    "an external link": (external_link, 100, ("outside.h5",)),
    "its absolute path": (external_link, 100, ("{folder}/out*.h5",)),
    "a soft link to an external one": (soft_to_external, 100, ("outside.h5",)),
    "a chain": (chain, 200, ("outside.h5", "further.h5")),
    "a virtual dataset": (virtual("outside.h5"), 100, ("*.h5",)),
    "a virtual one of a link": (virtual("outside.h5", "chain"), 200, ("*.h5",)),
    "nested virtual ones": (nested_virtual, 100, ("*.h5",)),
    "external storage": (raw_storage(160), 100, ("raw.bin",)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_with_consent_the_other_files_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    add, more, external = ALLOWED[name]
    with_x(add)(tmp_path)
    monkeypatch.chdir(tmp_path)
    external = tuple(pattern.format(folder=tmp_path) for pattern in external)
    shards = find_shards(HDF5Input("a.h5", features="x", label="y", external=external))
    assert isinstance(shards.layouts[0][0], Opaque)
    with Reader(shards) as reader:
        for rows in (np.arange(ROWS), np.array([7, 2, 3])):
            np.testing.assert_array_equal(reader.read(rows)[0], X[rows] + more)
    convert("new/a", ["a.h5"], Options(shards=1, columns="x,y", external=external))
    with h5py.File("new/a-00000.h5") as file:
        np.testing.assert_array_equal(file["x"], X + more)


@pytest.mark.parametrize("add", [external_link, virtual("outside.h5"), nested_virtual, virtual("outside.h5", "chain")])
@pytest.mark.parametrize("through", ["", "linked/", "link.h5"])
def test_what_is_read_is_what_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[[h5py.File], object], through: str
) -> None:
    """Files of the same names lie in the working directory and, behind a link, beside the shard's own name."""
    for name in ("data", "here", "links"):
        (tmp_path / name).mkdir()
    with_x(add)(tmp_path / "data")
    for path in (tmp_path / "data").glob("*.h5"):
        (tmp_path / "here" / path.name).write_bytes(path.read_bytes())
    for name in ("outside.h5", "further.h5"):
        with h5py.File(tmp_path / "here" / name, "a") as file:
            for place in ("x", "g/x"):
                if place in file and file.get(place, getlink=True).__class__ is h5py.HardLink:
                    file[place][:] = -1.0
    (tmp_path / "linked").symlink_to("data")
    (tmp_path / "link.h5").symlink_to("data/a.h5")
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / (through if through.endswith(".h5") else f"{through}a.h5" if through else "data/a.h5")
    both = {"data": str(tmp_path / "data" / "*.h5"), "here": str(tmp_path / "here" / "*.h5")}
    read = []
    for allowed in both:
        try:
            source = HDF5Input(str(path), features="x", label="y", external=both[allowed])
            with Reader(find_shards(source)) as reader:
                first = float(reader.read(np.arange(ROWS))[0][0, 0])
        except OutsideError:
            continue
        assert (first < 0) == (allowed == "here"), (allowed, first)
        read.append(allowed)
    assert read == (["here"] if through == "link.h5" else ["data"])


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(path.read_bytes())])
def test_what_a_virtual_dataset_is_made_of_may_not_change_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    with_x(virtual("outside.h5"))(tmp_path)
    shards = find_shards(HDF5Input("a.h5", features="x", label="y", external="*.h5"))
    with Reader(shards) as reader:
        reader.read(np.arange(ROWS))
        change(Path("outside.h5"))
        with pytest.raises(OSError, match=r"outside\.h5"):
            reader.read(np.arange(ROWS))


def test_what_leads_back_into_the_shard_needs_no_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_x(virtual(".", "inner"))(tmp_path)
    with h5py.File("a.h5", "a") as file:
        file["inner"] = X
        file["soft"] = h5py.SoftLink("/inner")
        file["self"] = h5py.ExternalLink("a.h5", "inner")
    shards = find_shards(HDF5Input("a.h5", features=("x", "soft", "self"), label="y"))
    with Reader(shards) as reader:
        for array in reader.read(np.arange(ROWS))[:3]:
            np.testing.assert_array_equal(array, X)


def test_a_shard_may_be_a_link_that_the_user_names(tmp_path: Path) -> None:
    with_x(lambda file: file.__setitem__("x", X))(tmp_path)
    (tmp_path / "link.h5").symlink_to("a.h5")
    assert find_shards(HDF5Input(str(tmp_path / "link.h5"), features="x", label="y")).rows == ROWS


def test_a_column_that_is_not_wanted_may_lie_elsewhere(tmp_path: Path) -> None:
    with_x(external_link)(tmp_path)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["own"] = X
    assert find_shards(HDF5Input(str(tmp_path / "a.h5"), features="own", label="y")).rows == ROWS


def test_rows_never_written_are_fill_values_as_long_as_they_are_few(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (1 << 16, 8), "f4", chunks=(1 << 10, 8), fillvalue=3)
        file["y"] = np.zeros(1 << 16, np.int8)
    with Reader(find_shards(HDF5Input(str(tmp_path / "a.h5")))) as reader:
        assert (reader.read(np.array([5, 1 << 15]))[0] == 3).all()


def test_inspect_names_the_files_and_does_not_open_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_x(external_link)(tmp_path)
    Path("outside.h5").unlink()
    (report,) = inspect(["a.h5"])
    assert not report.problems
    (x,) = (dataset for dataset in report.datasets if dataset.name == "x")
    assert (x.read_by, x.outside) == ("with consent", ("outside.h5",))
    assert "lies in outside.h5, which `external` has to allow" in str(x.reason)


def test_inspect_waits_for_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.h5")
    (tmp_path / "b.h5").symlink_to("/dev/zero")
    reports = inspect([str(tmp_path / "*.h5")])
    assert [report.problems for report in reports] == [
        ("is a FIFO, not a regular file",),
        ("is a device, not a regular file",),
    ]


def test_names_with_control_characters_are_read_and_reported(tmp_path: Path) -> None:
    names = ["a\x1b[2J", "b\n\rc", "d\u202ee", "\u2028", "f\x7f"]
    with h5py.File(tmp_path / "\x1b[31m.h5", "w") as file:
        for name in names:
            file[name] = X
        file["y"] = np.arange(ROWS)
    (report,) = inspect([str(tmp_path / "\x1b[[]31m.h5")])
    assert {dataset.name for dataset in report.datasets} == {*names, "y"}
    shards = find_shards(HDF5Input(str(tmp_path / "*.h5"), features=tuple(names)))
    with Reader(shards) as reader:
        np.testing.assert_array_equal(reader.read(np.array([4]))[0], X[[4]])


def tried(path: Path) -> str:
    """What is wrong with how a changed shard is read; "" for nothing."""
    try:
        shards = find_shards(HDF5Input(str(path), features="x", label="y", batch_size=1))
        rows = np.unique(np.minimum(np.append(np.arange(64), shards.rows - 1), shards.rows - 1))
        with Reader(shards) as reader:
            for column, array in zip(shards.columns, reader.read(rows), strict=True):
                if isinstance(array, Ragged):
                    first_invalid(array.values, array.lengths)
                    array = array.texts() if column.is_text else array.lengths
                    if len(array) != len(rows):
                        return f"{len(array)} rows, not {len(rows)}"
                elif array.shape != (len(rows), *column.shape) or array.dtype != np.dtype(column.dtype):
                    return f"{array.dtype} {array.shape} for {column}"
    except (UserError, OSError):
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:500]
    return ""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return [path.read_bytes() for path in small_shards(tmp_path_factory.mktemp("small"))]


@settings(max_examples=examples(15))
@given(st.lists(st.tuples(st.integers(0, 10), CHANGES), min_size=20, max_size=40))
def test_whatever_bytes_are_changed_rows_come_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory,
    small: list[bytes],
    batch: list[tuple[int, list[tuple[str, int, int, int]]]],
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    for i, (number, changes) in enumerate(batch):
        (folder / f"{i}.h5").write_bytes(changed(small[number % len(small)], changes))
    count("shards", len(batch))
    wrong = in_a_child([folder / f"{i}.h5" for i in range(len(batch))], tried)
    assert not wrong, f"{wrong}; {folder}"
    shutil.rmtree(folder)

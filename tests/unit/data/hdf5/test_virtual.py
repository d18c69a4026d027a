"""Virtual datasets whose sources libhdf5 could not be let read: what a selection's rank says it clears on its stack."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_train.data.hdf5.global_heap import SIGNATURE, objects_of
from hpc_train.data.hdf5.heap_file import HeapFile
from hpc_train.data.hdf5.input_file import Consent, InputFile
from hpc_train.errors import UserError

X = np.arange(40.0).reshape(10, 4)
PARTS: dict[str, tuple[Any, int]] = {"all": (np.s_[:], 10), "some": (np.s_[2:6], 4), "every": (np.s_[::2], 5)}
LIBRARIES = pytest.mark.parametrize("library", ["earliest", "v110", "latest"])


def written(path: Path, library: str, userblock: int = 0) -> None:
    """A file of virtual datasets, each of a part of the rows of x, and of one without end."""
    with h5py.File(path.with_name("source.h5"), "w", libver=library) as file:
        file["x"] = X
        file.create_dataset("long", data=X, maxshape=(None, 4))
    with h5py.File(path, "w", libver=library, userblock_size=userblock) as file:
        for name, (part, rows) in PARTS.items():
            layout = h5py.VirtualLayout((rows, 4), "f8")
            layout[:] = h5py.VirtualSource("source.h5", "x", (10, 4))[part]
            file.create_virtual_dataset(name, layout)
        layout = h5py.VirtualLayout((10, 4), "f8", maxshape=(None, 4))
        source = h5py.VirtualSource("source.h5", "long", (10, 4), maxshape=(None, 4))
        layout[0 : h5py.h5s.UNLIMITED :] = source[0 : h5py.h5s.UNLIMITED]
        file.create_virtual_dataset("long", layout)
        file["plain"] = X


@LIBRARIES
@pytest.mark.parametrize("userblock", [0, 512])
def test_sound_ones_are_read(tmp_path: Path, library: str, userblock: int) -> None:
    written(tmp_path / "a.h5", library, userblock)
    with InputFile(tmp_path / "a.h5", Consent((str(tmp_path / "*.h5"),))) as file:
        for name, (part, _) in {**PARTS, "long": (np.s_[:], 10), "plain": (np.s_[:], 10)}.items():
            dataset = file.dataset(name)
            assert dataset is not None
            np.testing.assert_array_equal(dataset[()], X[part])


@LIBRARIES
def test_a_rank_that_no_dataset_has_is_refused(tmp_path: Path, library: str) -> None:
    path = tmp_path / "a.h5"
    written(path, library)
    data = bytearray(path.read_bytes())
    at, changed = data.find(SIGNATURE), 0
    blocks = list(objects_of(lambda place, size: bytes(data[place : place + size]), at, len(data)))
    assert len(blocks) == len(PARTS) + 1
    for _, place, size in blocks:
        for here in range(place, place + size - 4):
            if data[here : here + 4] == struct.pack("<I", 2) and b"x\0" not in data[here : here + 8]:
                for rank in (0, 33, 2**32 - 1):
                    broken = data[:here] + struct.pack("<I", rank) + data[here + 4 :]
                    path.write_bytes(broken)
                    changed += refused(path)
    assert changed >= 3 * len(blocks), "the selections were found"


def refused(path: Path) -> bool:
    """Whether one of the datasets of the file is refused; what is opened does not end the process."""
    names = (*PARTS, "long")
    with InputFile(path, Consent((str(path.parent / "*.h5"),))) as file:
        for name in names:
            try:
                file.dataset(name)
            except UserError as error:
                assert "its list of sources is damaged" in str(error) or "are not there" in str(error), error
                with HeapFile(path) as held, h5py.File(held, "r") as opened, suppress(ValueError, KeyError):
                    held.own(opened, name)
                return True
            except (KeyError, OSError, RuntimeError):  # what HDF5 itself finds: another kind of selection
                pass
    return False


def test_a_source_in_another_file_is_looked_at_too(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", "latest")
    (tmp_path / "a.h5").rename(tmp_path / "inner.h5")
    data = bytearray((tmp_path / "inner.h5").read_bytes())
    at = data.find(SIGNATURE)
    (_, place, _), *_ = objects_of(lambda where, size: bytes(data[where : where + size]), at, len(data))
    data[place] = 7  # a version that there is not
    (tmp_path / "inner.h5").write_bytes(data)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink("inner.h5", next(iter(PARTS)))
    with (
        InputFile(tmp_path / "a.h5", Consent((str(tmp_path / "*.h5"),))) as file,
        pytest.raises(UserError, match=r"'x' cannot be read: .*inner\.h5 is damaged: its list of sources is damaged"),
    ):
        file.dataset("x")

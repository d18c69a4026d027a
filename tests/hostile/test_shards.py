"""Shards that mean harm: nothing outside of them is read without consent, and nothing that they declare is believed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_train.config.specs import HDF5Input
from hpc_train.data.hdf5.layout import Opaque
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.writing.convert import Options, convert
from hpc_train.data.writing.inspect import inspect
from tests.hostile.data_corpus import (
    ROWS,
    SHARDS,
    SOURCES,
    Case,
    X,
    chain,
    external_link,
    nested_virtual,
    raw_storage,
    soft_to_external,
    virtual,
    with_x,
)
from tests.support import run_program

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
            done = convert("out/rows", arguments, Options(shards=1, **given))
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


def test_they_are_refused_in_one_sentence_and_bounded_memory(tmp_path: Path) -> None:
    wrong = wrong_in("shards", SHARDS, tmp_path)
    assert not wrong, "\n".join(wrong)


def test_sources_are_refused_in_one_sentence_and_bounded_memory(tmp_path: Path) -> None:
    wrong = wrong_in("sources", SOURCES, tmp_path)
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

"""Sources that mean harm, and folders that somebody has prepared before `hpc-train shard` and `predict` write there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_train.data.hdf5.input_file import InputFile
from hpc_train.data.writing.convert import Options, convert
from hpc_train.data.writing.prediction_files import Origin, is_whole, write_predictions
from hpc_train.errors import UserError
from tests.hostile.data_corpus import SOURCES, wrong_in


def test_sources_are_refused_in_one_sentence_and_bounded_memory(tmp_path: Path) -> None:
    wrong = wrong_in("sources", SOURCES, tmp_path)
    assert not wrong, "\n".join(wrong)


def numbers(folder: Path) -> None:
    (folder / "rows.csv").write_text("x,y\n" + "".join(f"{i},{2 * i}\n" for i in range(100)))
    (folder / "victim").write_text("mine")


HIDDEN = [".a.lock", ".a.plan.json", ".a.spool-0", f".a-00000.h5.{os.getpid()}.tmp", f".a.spool-0.{os.getpid()}.tmp",
          f".a.plan.json.{os.getpid()}.tmp", "a-00000.h5"]  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("to", ["victim", "absent"])
def test_links_laid_in_the_way_of_shards_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, to: str
) -> None:
    monkeypatch.chdir(tmp_path)
    numbers(tmp_path)
    Path(name).symlink_to(to)
    try:
        convert("a", ["rows.csv"], Options(shards=1, shuffle=True))
    except UserError as error:
        assert "\n" not in str(error)
        assert name.lstrip(".")[:6] in str(error)
    else:
        with h5py.File("a-00000.h5") as file:
            assert sorted(file["x"]) == list(range(100))
    assert Path("victim").read_text() == "mine"
    assert not Path("absent").exists()


@pytest.mark.parametrize("name", [".a.lock", ".a.plan.json", ".a.spool-0", "a-00000.h5"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_nothing_waits_for_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    numbers(tmp_path)
    make(name)
    try:
        convert("a", ["rows.csv"], Options(shards=1))
    except (UserError, OSError) as error:
        assert "\n" not in str(error)


def test_a_folder_for_shards_may_be_a_link_that_the_user_names(tmp_path: Path) -> None:
    numbers(tmp_path)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "data").symlink_to("scratch")
    convert(tmp_path / "data" / "a", [str(tmp_path / "rows.csv")], Options(shards=1))
    assert (tmp_path / "scratch" / "a-00000.h5").is_file()


def test_a_spool_of_somebody_else_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    numbers(tmp_path)
    options = Options(shards=1, shuffle=True)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hpc_train.data.writing.convert.write_tables", killed)
        with pytest.raises(KeyboardInterrupt):
            convert("a", ["rows.csv"], options)
    spool = Path(".a.spool-0")
    size = spool.stat().st_size
    spool.unlink()
    Path("planted").write_bytes(bytes(size))
    spool.symlink_to("planted")
    convert("a", ["rows.csv"], options)
    with h5py.File("a-00000.h5") as file:
        assert sorted(file["x"]) == list(range(100))
    assert Path("planted").read_bytes() == bytes(size)


def test_predictions_go_through_no_link(tmp_path: Path) -> None:
    origin = Origin("export", 1, "digest", "a.h5", 1, 1, {"x": "x"}, {}, 4)
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "p.h5").symlink_to("victim")
    for name in (f".p.h5.{os.uname().nodename}-{os.getpid()}.tmp",):
        (tmp_path / name).symlink_to("victim")
    write_predictions(tmp_path / "p.h5", origin, 0, 2, [{"y": np.zeros((2, 1))}])
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "p.h5").is_symlink()
    assert is_whole(tmp_path / "p.h5", origin, 0, 2)
    (tmp_path / "q.h5").symlink_to("p.h5")
    assert not is_whole(tmp_path / "q.h5", origin, 0, 2)


def test_a_file_of_too_many_datasets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpc_train.data.hdf5.input_file.MAX_DATASETS", 20)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(21):
            file[f"x{i}"] = h5py.SoftLink("/x0")
    with InputFile(tmp_path / "a.h5") as opened, pytest.raises(UserError, match="has 21 datasets or groups"):
        opened.names  # noqa: B018

"""Files are replaced whole, also in a folder in which others may write."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from hpc_train.telemetry.json_files import replace_text, write_json


def test_json_is_replaced_whole_and_always_valid(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": math.nan, "all": [1.5, math.inf, {"x": "y"}]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": None, "all": [1.5, None, {"x": "y"}]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.fixture
def foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary file of `tmp_path / "a.json"`, for once known before it is made."""
    monkeypatch.setattr("hpc_train.telemetry.json_files.os.urandom", bytes)
    return tmp_path / f".a.json.{'00' * 8}.tmp"


@pytest.mark.parametrize("to", ["victim", "absent"])
def test_a_link_that_was_laid_in_its_way_is_not_followed(tmp_path: Path, foreseen: Path, to: str) -> None:
    (tmp_path / "victim").write_text("mine")
    foreseen.symlink_to(tmp_path / to)
    with pytest.raises(FileExistsError):
        replace_text(tmp_path / "a.json", "{}")
    assert foreseen.is_symlink(), "it belongs to somebody else"
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "absent").exists()
    assert not (tmp_path / "a.json").exists()


def test_a_file_that_was_laid_in_its_way_is_not_written(tmp_path: Path, foreseen: Path) -> None:
    foreseen.write_text("mine")
    with pytest.raises(FileExistsError):
        replace_text(tmp_path / "a.json", "{}")
    assert foreseen.read_text() == "mine"


def test_no_two_temporary_files_have_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    replace = os.replace

    def note(source: Path, target: Path) -> None:
        names.append(source.name)
        replace(source, target)

    monkeypatch.setattr("hpc_train.telemetry.json_files.os.replace", note)
    for _ in range(20):
        replace_text(tmp_path / "a.json", "{}")
    assert len(set(names)) == 20


def test_a_link_in_place_of_the_file_is_replaced_itself(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a.json").symlink_to(tmp_path / "victim")
    replace_text(tmp_path / "a.json", "{}")
    assert not (tmp_path / "a.json").is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_text(tmp_path / "a.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.json").write_text("before")
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"hpc_train.telemetry.json_files.os.{call}", full)
            with pytest.raises(OSError, match="No space left"):
                replace_text(tmp_path / "a.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "before"

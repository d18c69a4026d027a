"""Files in folders that others have prepared: links are not followed, nothing waits, files are replaced whole."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.files import (
    create,
    is_ours,
    open_to_append,
    open_to_lock,
    open_to_read,
    read_bytes,
    replace_text,
    require_regular,
)


@pytest.fixture
def foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary file of `tmp_path / "a.json"`, for once known before it is made."""
    monkeypatch.setattr("hpc_train.files.os.urandom", bytes)
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

    def note(source: str, target: str, **folders: int) -> None:
        names.append(source)
        replace(source, target, **folders)

    monkeypatch.setattr("hpc_train.files.os.replace", note)
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
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.json").write_text("before")
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"hpc_train.files.os.{call}", full)
            with pytest.raises(OSError, match="No space left"):
                replace_text(tmp_path / "a.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "before"


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    (path.parent / "victim").write_text("mine")
    path.symlink_to("victim")


KINDS: dict[Callable[[Path], None], str] = {
    a_fifo: "a FIFO",
    a_socket: "a socket",
    a_folder: "a folder",
    a_link: "a symbolic link",
}
WAYS: list[Callable[[Path], object]] = [open_to_read, open_to_append, open_to_lock, require_regular]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_by_its_kind(
    tmp_path: Path, kind: Callable[[Path], None], way: Callable[[Path], object]
) -> None:
    kind(tmp_path / "a")
    with pytest.raises(OSError, match=f"is {KINDS[kind]}, not a regular file"):
        way(tmp_path / "a")
    with pytest.raises(FileExistsError):
        create(tmp_path / "a")


def test_a_device_is_refused() -> None:
    with pytest.raises(OSError, match="is a device, not a regular file"):
        open_to_read("/dev/zero")
    with pytest.raises(OSError, match="is a device, not a regular file"):
        read_bytes("/dev/zero", 10, follow=True)


def test_a_link_that_a_user_has_named_is_followed_to_regular_files_alone(tmp_path: Path) -> None:
    a_link(tmp_path / "a")
    assert read_bytes(tmp_path / "a", 100, follow=True) == b"mine"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "b").symlink_to("fifo")
    with pytest.raises(OSError, match="is a FIFO, not a regular file"):
        open_to_read(tmp_path / "b", follow=True)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        open_to_read(tmp_path / "loop", follow=True)


def test_reads_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(2048))
    assert len(read_bytes(tmp_path / "a", 2048)) == 2048
    with pytest.raises(OSError, match="has more than 1 KiB") as caught:
        read_bytes(tmp_path / "a", 1024)
    assert caught.value.errno == errno.EFBIG


def test_what_is_appended_comes_at_the_end(tmp_path: Path) -> None:
    for text in (b"one\n", b"two\n"):
        with open_to_append(tmp_path / "a") as file:
            file.write(text)
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\n"


def test_what_is_ours_is_a_file_that_we_have_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("mine")
    (tmp_path / "link").symlink_to("a")
    assert [is_ours(tmp_path / name) for name in ("a", "link", "none")] == [True, False, False]
    assert not is_ours(tmp_path)
    monkeypatch.setattr("hpc_train.files.os.geteuid", lambda: 4711)
    assert not is_ours(tmp_path / "a")

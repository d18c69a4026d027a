"""Folders that others may change while something is made, renamed or removed in them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.checkpoint.disk_io import write_pieces
from hpc_train.files import create, open_to_append, open_to_change, open_to_lock, replace_text, replacement
from hpc_train.folders import (
    exposure,
    held,
    make_folder,
    make_new_folder,
    remove,
    remove_folder,
    remove_tree,
    rename,
)
from tests.hostile.commands import contents_of, link_of_another


def test_a_folder_is_made_once_and_a_link_to_one_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(NotADirectoryError, match="is a symbolic link, not a folder"):
        make_folder(tmp_path / "link")
    make_folder(tmp_path / "link", follow=True)
    (tmp_path / "nowhere").symlink_to("gone")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "nowhere", follow=True)


def test_links_of_this_user_lead_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "up").symlink_to("a/b/..")
    (tmp_path / "a/absolute").symlink_to(tmp_path / "up")
    (tmp_path / "round").symlink_to("round")
    replace_text(tmp_path / "a/absolute/b/../x", "1")
    with held(tmp_path / "a/absolute", follow=True) as folder:
        assert (folder / "x").read_text() == "1"
    assert (tmp_path / "a/x").read_text() == "1"
    monkeypatch.chdir(tmp_path)
    rename(Path("up/x"), Path("y"))
    assert (tmp_path / "y").read_text() == "1"
    with pytest.raises(OSError, match=r"Too many levels of symbolic links: '.*/round/x'"):
        replace_text(tmp_path / "round/x", "1")


WAYS: dict[str, Callable[[Path], object]] = {
    "create": create,
    "append": open_to_append,
    "lock": open_to_lock,
    "change": lambda folder: open_to_change(folder / "file"),
    "replace": lambda path: replace_text(path, "theirs"),
    "write pieces": lambda path: write_pieces(path, 1, [(0, memoryview(b"x"))]),
    "make": make_new_folder,
    "make with parents": lambda path: make_folder(path / "deep"),
    "rename": lambda path: rename(path.with_name("file"), path),
    "rename into": lambda path: rename(path.parent.parent / "ours", path),
    "remove": lambda path: remove(path.with_name("file")),
    "remove folder": lambda path: remove_folder(path.with_name("empty")),
    "hold": lambda path: held(path.with_name("empty")).__enter__(),
    "hold itself": lambda path: held(path.parent).__enter__(),
    "hold what it leads to": lambda path: held(path.parent, follow=True).__enter__(),
}


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    """A folder of the job's, beside `victim`, which is to stay as it is."""
    (tmp_path / "victim/empty").mkdir(parents=True)
    (tmp_path / "victim/file").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/ours").write_text("ours")
    return tmp_path / "run"


@pytest.mark.parametrize("way", WAYS)
def test_links_of_others_lead_nowhere(job_dir: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    link_of_another(job_dir / "logs", job_dir.parent / "victim", monkeypatch)
    before = contents_of(job_dir.parent)
    with pytest.raises(OSError, match=r"is a symbolic link of uid|Not a directory") as caught:
        WAYS[way](job_dir / "logs/new")
    assert contents_of(job_dir.parent) == before
    if way != "hold itself":
        assert str(job_dir) in str(caught.value.filename)
        assert f"{job_dir / 'logs'} is a symbolic link of uid" in str(caught.value.strerror)


def test_nor_is_a_folder_removed_through_them(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link_of_another(job_dir / "logs", job_dir.parent / "victim", monkeypatch)
    before = contents_of(job_dir.parent)
    for path in (job_dir / "logs", job_dir / "logs/empty"):
        remove_tree(path)
    assert contents_of(job_dir.parent) == before


def test_what_has_begun_in_a_folder_ends_there_wherever_its_path_leads_by_then(job_dir: Path) -> None:
    """Here with a link of the user's own, which would be followed."""
    (job_dir / "logs").mkdir()
    before = contents_of(job_dir.parent / "victim")
    with replacement(job_dir / "logs/file") as file, held(job_dir / "logs") as folder:
        (job_dir / "logs").rename(job_dir / "moved")
        (job_dir / "logs").symlink_to(job_dir.parent / "victim")
        file.write(b"ours")
        (folder / "more").write_text("ours")
    assert contents_of(job_dir.parent / "victim") == before
    assert sorted(path.name for path in (job_dir / "moved").iterdir()) == ["file", "more"]


def test_what_holds_a_folder_may_be_given_back(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the link that /proc has for it, which belongs to nobody within some containers."""
    monkeypatch.setattr("hpc_train.folders._is_trusted", lambda uid: False)
    with held(job_dir) as folder:
        job_dir.rename(job_dir.with_name("moved"))
        replace_text(folder / "a", "1")
        make_folder(folder / "b/c")
        rename(folder / "a", folder / "b/a")
    assert (job_dir.with_name("moved") / "b/a").read_text() == "1"


def test_a_folder_that_another_node_makes_anew_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS reports it, for a moment."""
    opened, stale = os.open, iter([True, False, True, False, False])

    def on_nfs(path: str, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if path == tmp_path.name and next(stale, False):
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(path, flags, *args, dir_fd=dir_fd)

    monkeypatch.setattr("hpc_train.folders.os.open", on_nfs)
    for text in ("1", "2"):
        replace_text(tmp_path / "a", text)
        assert (tmp_path / "a").read_text() == text
    stale = iter([True] * 100)
    with pytest.raises(OSError, match=r"Stale file handle: '.*/a'"):
        replace_text(tmp_path / "a", "3")


def test_a_held_folder_is_named_by_its_path_in_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, held(tmp_path) as folder:
        (folder / "a/b").read_text()
    assert caught.value.filename == f"{tmp_path}/a/b"


def test_no_descriptor_is_left_open(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_ones() -> int:
        return sum("run" in os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))

    (job_dir / "own").symlink_to(job_dir)
    link_of_another(job_dir / "theirs", job_dir, monkeypatch)
    before = open_ones()
    for _ in range(3):
        replace_text(job_dir / "a", "1")
        rename(job_dir / "a", job_dir / "b")
        with held(job_dir):
            pass
        make_folder(job_dir / "x/y")
        remove_tree(job_dir / "x")
        for path, why in (("b/c", "Not a directory"), ("none/c", "No such file"), ("theirs/c", "link of uid")):
            with pytest.raises(OSError, match=why):
                create(job_dir / path)
            with pytest.raises(OSError, match=why):
                rename(job_dir / path, job_dir / path)
    assert open_ones() == before


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (0o700, None),
        (0o755, None),
        (0o1777, None),
        (0o777, "may be written by all users"),
        (0o775, "may be written by its group"),
    ],
)
def test_it_is_known_who_else_may_write_in_a_folder(tmp_path: Path, mode: int, words: str | None) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    assert exposure(tmp_path / "a") == words


def test_a_folder_of_somebody_elses_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = tmp_path.stat().st_uid
    monkeypatch.setattr("hpc_train.folders.os.geteuid", lambda: uid + 1)
    if uid == 0:  # root's folders count as nobody's
        (tmp_path / "a").mkdir()
        os.chown(tmp_path / "a", 12345, -1)
        assert exposure(tmp_path / "a") == "belongs to uid 12345"
    else:
        assert exposure(tmp_path) == f"belongs to uid {uid}"

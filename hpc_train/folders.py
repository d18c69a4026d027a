"""Folders that others may change: each of a path is entered by its descriptor, and no link of others is followed.

A path that is looked up twice may lead to two places, if somebody who can write in one of its folders puts a link
there meanwhile. So what is made, renamed or removed is so by its name in a folder that is held open, and to which no
such link has led. Links of this user and of root are followed: of uid 0, and of whom `/proc/self` belongs to, which is
root where a container does not map it. Errors are OSErrors with the path that was given and a `strerror` that is a
sentence's end for the user. Local.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as in the kernel
_MOST_LOOKS = 3
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}
_WRITABLE_BY = ((stat.S_IWOTH, "all users"), (stat.S_IWGRP, "its group"))


def kind_of(mode: int) -> str:
    """What a file is, in words: "a FIFO". Pure."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


@contextmanager
def parent(path: Path) -> Iterator[tuple[int, str]]:
    """The descriptor of the folder that `path` lies in, and its name there; OSErrors of the body are about `path`.

    Raises:
        OSError: A folder is missing or cannot be entered; ELOOP: a link of another user leads there.
    """
    with open_parent(path) as (folder, name), named(path):
        yield folder, name


@contextmanager
def open_parent(path: Path) -> Iterator[tuple[int, str]]:
    """The same for a body with errors of its own."""
    with named(path):
        folder = _enter(path.parent)
    try:
        yield folder, path.name or "."
    finally:
        os.close(folder)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """OSErrors of the body, which are about a name in a folder, are about `path`."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def held(folder: Path, follow: bool = False) -> Iterator[Path]:
    """Another path to `folder`, whatever becomes of those above it meanwhile: for libraries that write in there.

    Args:
        follow: Whether `folder` may be a link: one that the user has named.

    Raises:
        OSError: As `parent`; or it is a link and not to be followed.
    """
    if follow:
        with named(folder):
            descriptor = _enter(folder)
    else:
        with parent(folder) as (above, name):
            descriptor = os.open(name, _ENTER, dir_fd=above)
    place = f"/proc/self/fd/{descriptor}"
    try:
        yield Path(place)
    except OSError as error:
        if isinstance(error.filename, str) and (error.filename == place or error.filename.startswith(f"{place}/")):
            error.filename = f"{folder}{error.filename.removeprefix(place)}"
        raise
    finally:
        os.close(descriptor)


def make_new_folder(path: Path, mode: int = 0o777) -> None:
    """Makes a folder in one that is there.

    Raises:
        FileExistsError: There is something of that name, if only a link to nowhere.
        OSError: It cannot be made.
    """
    with parent(path) as (folder, name):
        os.mkdir(name, mode, dir_fd=folder)


def make_folder(path: Path, mode: int = 0o777, top: Path | None = None, follow: bool = False) -> None:
    """Makes a folder, and those above it, unless it is there; a link in its place is refused.

    Args:
        top: A folder above it: of those below that none is a link, either.
        follow: Whether `path` may be a link to a folder: one that the user has named.

    Raises:
        NotADirectoryError: There is something else of that name, a link to a folder included.
        OSError: It cannot be made.
    """
    if top is not None and path.parent not in (top, *top.parents):
        make_folder(path.parent, mode, top)
    try:
        _make_with_parents(path, mode)
    except FileExistsError:
        with parent(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(found):
            return
        if follow and stat.S_ISLNK(found):
            with suppress(FileNotFoundError), named(path):
                os.close(_enter(path))
                return
        raise NotADirectoryError(errno.ENOTDIR, f"is {kind_of(found)}, not a folder", str(path)) from None


def rename(path: Path, target: Path) -> None:
    """Renames a file or folder, in the place of a file or an empty folder that `target` may be.

    Raises:
        OSError: It cannot be renamed.
    """
    with open_parent(path) as (folder, name), open_parent(target) as (other, new):
        try:
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=other)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path), None, str(target)) from None


def remove(path: Path, missing_ok: bool = False) -> None:
    """Removes a file, or a link itself.

    Raises:
        FileNotFoundError: There is none, unless `missing_ok`.
        OSError: It cannot be removed.
    """
    try:
        with parent(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        if not missing_ok:
            raise


def remove_folder(path: Path) -> None:
    """Removes an empty folder.

    Raises:
        OSError: It cannot be removed: ENOTEMPTY, ENOENT and others.
    """
    with parent(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Removes a folder and what is in it, as far as that is possible; of links in it themselves. A link stays."""
    with suppress(OSError), open_parent(path) as (folder, name):
        shutil.rmtree(f"/proc/self/fd/{folder}/{name}", ignore_errors=True)


def exposure(path: Path, group: bool = True) -> str | None:
    """Who else may write in the folder `path`: "belongs to uid 1000", "may be written by all users"; None: nobody.

    Folders of root's, and those with the sticky bit (as /tmp), count as nobody's.

    Args:
        group: Whether those of its group count.

    Raises:
        OSError: It cannot be looked at.
    """
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to uid {status.st_uid}"
    if status.st_mode & stat.S_ISVTX:
        return None
    by = next((who for bit, who in _WRITABLE_BY[: 1 + group] if status.st_mode & bit), None)
    return None if by is None else f"may be written by {by}"


def _make_with_parents(path: Path, mode: int) -> None:
    try:
        make_new_folder(path, mode)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_folder(path.parent, follow=True)
        make_new_folder(path, mode)


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0, Path("/proc/self").lstat().st_uid)


def _enter(path: Path) -> int:
    """The descriptor of the folder `path`, which is good for finding what is in it alone.

    A folder on NFS that another node removes and makes again meanwhile is looked for anew, as the kernel does.
    """
    for _ in range(_MOST_LOOKS):
        try:
            return _walk(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return _walk(path)


def _walk(path: Path) -> int:
    start, parts = ("/" if path.is_absolute() else "."), list(reversed(path.parts))
    if path.parts[:4] == ("/", "proc", "self", "fd") and len(path.parts) > 4:  # a folder that is held
        start, parts = str(Path(*path.parts[:5])), parts[:-5]
    folder, passed, links = os.open(start, _ENTER & ~os.O_NOFOLLOW), Path(), 0
    try:
        while parts:
            part = parts.pop()
            try:
                inner = os.open(part, _ENTER, dir_fd=folder)
            except NotADirectoryError:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                parts += reversed(_followed(folder, part, passed / part).parts)
                continue
            left, folder, passed = folder, inner, passed / part
            os.close(left)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _followed(folder: int, name: str, path: Path) -> Path:
    """Where a link leads; NotADirectoryError where it is none, OSError with ELOOP where it is another user's."""
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(link)
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        target = os.readlink("", dir_fd=link)
    finally:
        os.close(link)
    if not _is_trusted(status.st_uid):
        raise OSError(
            errno.ELOOP,
            f"{path} is a symbolic link of uid {status.st_uid}, who can lead it elsewhere than to {target}; name that "
            "folder itself",
        )
    return Path(target)

"""Files in folders that others may have prepared: the one place of the package that opens and makes them.

What is read is a regular file, so that nothing waits for a FIFO or reads a device, and no larger than the caller says.
What is written is a new file with a name that nobody can foresee, which a rename commits; what is appended to or locked
is never a link. Errors are OSErrors whose `strerror` is a sentence's end for the user. Local.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}
_WRITABLE_BY = ((stat.S_IWOTH, "all users"), (stat.S_IWGRP, "its group"))


def open_regular(path: str | Path, flags: int = os.O_RDONLY, follow: bool = False, mode: int = 0o666) -> int:
    """A descriptor of a regular file, opened with `flags` and never waited for; errors as in `open_to_read`."""
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, mode)
    except BlockingIOError:  # another machine is about to give the file up; a regular one is worth the wait
        if not stat.S_ISREG(Path(path).stat(follow_symlinks=follow).st_mode):
            raise
        descriptor = os.open(path, flags & ~os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR):
            _refuse(path, Path(path).stat(follow_symlinks=follow).st_mode, error)
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor
    os.close(descriptor)
    _refuse(path, status.st_mode)


def open_to_read(path: str | Path, follow: bool = False) -> BinaryIO:
    """Opens a regular file, buffered; waits for nothing but the file system.

    Args:
        follow: Whether `path` may be a symbolic link: one that the user has named, not one that lies in a job-dir.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    return cast(BinaryIO, open(open_regular(path, follow=follow), "rb"))


def read_bytes(path: str | Path, max_bytes: int, follow: bool = False) -> bytes:
    """All of a regular file.

    Raises:
        OSError: As `open_to_read`; EFBIG: it has more than `max_bytes`.
    """
    with open_to_read(path, follow) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {_bytes_in_words(max_bytes)}", str(path))
    return content


def require_regular(path: str | Path, follow: bool = False) -> None:
    """Checks what `open_to_read` does, for libraries that open the file themselves.

    Raises:
        OSError: As `open_to_read`.
    """
    os.close(open_regular(path, follow=follow))


def open_to_append(path: str | Path, mode: int = 0o666) -> BinaryIO:
    """Opens a regular file, or makes one, to add to its end; unbuffered. Never through a link.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return cast(BinaryIO, open(open_regular(path, flags, mode=mode), "ab", buffering=0))


def open_to_lock(path: str | Path, mode: int = 0o600) -> int:
    """A descriptor of a regular file, which is made where there is none, to read, write and lock. Never through a link.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    return open_regular(path, os.O_RDWR | os.O_CREAT, mode=mode)


def open_to_change(path: str | Path) -> int:
    """The same of a file that is there."""
    return open_regular(path, os.O_RDWR)


def create(path: str | Path, mode: int = 0o666, readable: bool = False) -> int:
    """A descriptor of a new file, to write and, with `readable`, to read.

    Raises:
        FileExistsError: There is something of that name, if only a link to nowhere.
        OSError: It cannot be made.
    """
    access = os.O_RDWR if readable else os.O_WRONLY
    return os.open(path, access | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def unforeseen(path: Path) -> Path:
    """A name beside `path` that nobody can foresee, for what becomes `path` by a rename: `.<name>.<16 digits>.tmp`."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


@contextmanager
def replacement(path: Path, to_disk: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file that replaces `path`, whatever that is, in one rename once the body has ended; else it is removed.

    Args:
        to_disk: Wait until its content is on the disk.

    Raises:
        OSError: It cannot be written.
    """
    temporary = unforeseen(path)
    descriptor = create(temporary, mode)
    try:
        with open(descriptor, "wb") as file:
            yield cast(BinaryIO, file)
            file.flush()
            if to_disk:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, to_disk: bool = True) -> None:
    """Replaces `path` by `text` in UTF-8, as `replacement` does."""
    with replacement(path, to_disk) as file:
        file.write(text.encode())


def is_ours(path: Path) -> bool:
    """Whether `path` is a regular file, no link, that belongs to this user."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


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
        path.mkdir(mode, parents=True)
    except FileExistsError:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind != stat.S_IFDIR and not (follow and path.is_dir()):
            raise NotADirectoryError(
                errno.ENOTDIR, f"is {_KINDS.get(kind, 'a file')}, not a folder", str(path)
            ) from None


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


def _refuse(path: str | Path, mode: int, error: OSError | None = None) -> NoReturn:
    number = errno.EINVAL if error is None or error.errno is None else error.errno
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise OSError(number, f"is {kind}, not a regular file", str(path)) from None


def _bytes_in_words(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB" if count >= 1 << 10 else f"{count} bytes"

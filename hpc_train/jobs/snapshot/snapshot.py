"""A copy of a job's code in its job-dir, so that editing files after submission changes nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpc_train.errors import UserError
from hpc_train.files import create, open_to_read, unforeseen
from hpc_train.folders import make_folder, make_new_folder, remove_tree, rename
from hpc_train.jobs.snapshot.code_files import CodeFiles, LeftOut, shown, unreadable
from hpc_train.jobs.snapshot.ignore import Rules, looks_secret
from hpc_train.telemetry.units import size

DEFAULT_MAX_BYTES = 64 << 20
MAX_FILES = 20_000
MAX_LEFT_OUT = 20
"""So many of what was left out are listed in Snapshot."""

LOOKS_SECRET = "it looks like a secret"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What copy_snapshot is to copy.

    Attributes:
        folder: Absolute and without links.
        files: Paths relative to it, sorted.
        bytes: The sum of their sizes.
        max_bytes: What they may grow to until they are copied.
        commit: The repository's commit; None where there is no repository, no commit or no git.
        dirty: Whether the folder's files differ from it; None where that is not known.
        left_out: Neither ignored by Git nor copied.
        rules: What is left out.
    """

    folder: Path
    files: tuple[str, ...]
    bytes: int
    max_bytes: int
    commit: str | None
    dirty: bool | None
    left_out: tuple[LeftOut, ...]
    rules: Rules


@dataclass(frozen=True)
class Snapshot:
    """What was copied, for submission.json: as Plan, with the number of files and the first MAX_LEFT_OUT left out."""

    commit: str | None
    dirty: bool | None
    files: int
    bytes: int
    left_out: tuple[LeftOut, ...]


def plan_snapshot(
    folder: Path,
    max_bytes: int = DEFAULT_MAX_BYTES,
    always: Sequence[Path] = (),
    data: Sequence[Path] = (),
    max_files: int = MAX_FILES,
    with_secrets: bool = False,
) -> Plan:
    """Lists the code in `folder`: its files but those that Git ignores, and what Rules leaves out besides.

    A link to a file is taken as that file. A link to a folder is followed where that is in `folder`, is not left out
    and does not hold the link. Reads names and sizes, and asks Git or reads .gitignore files; writes nothing.

    Args:
        always: Files in `folder` that are part of it whatever Git ignores; relative to `folder`, or absolute.
        data: Files that are not code, and are left out; absolute.
        with_secrets: Whether files that look like secrets are part of it.

    Raises:
        UserError: There is more than is allowed, or something cannot be read; or one of `always` is not a file there.
    """
    rules = Rules(folder.resolve())
    code = CodeFiles(rules, max_files)
    code.add_all()
    if len(code.sizes) <= max_files:
        for path in rules.read_tracked():
            code.add_file(path)
    for one in data:
        code.sizes.pop(os.path.relpath(one.resolve(), rules.folder), None)
    for path in [] if with_secrets else list(code.sizes):
        if looks_secret(path) or looks_secret((rules.folder / path).resolve().name):
            del code.sizes[path]
            code.left_out.append(LeftOut(shown(path), LOOKS_SECRET))
    for path in (_relative(folder, one) for one in always):
        if not code.add_file(path):
            raise UserError(f"{rules.folder / path}: is not a file; the job needs it")
    total = sum(code.sizes.values())
    if len(code.sizes) > max_files or total > max_bytes:
        raise _too_much(rules.folder, code.sizes, max_bytes, max_files)
    commit, dirty = rules.read_commit()
    left_out = tuple(sorted(code.left_out, key=lambda one: one.path))
    return Plan(rules.folder, tuple(sorted(code.sizes)), total, max_bytes, commit, dirty, left_out, rules)


def copy_snapshot(plan: Plan, target: Path) -> Snapshot:
    """Copies the files of `plan` into the new folder `target`, which is there whole or not at all.

    Files keep their time of change and whether they can be executed; nobody else may write them or enter `target`.

    Raises:
        UserError: `target` is there already or cannot be written; a file cannot be read, has vanished since it was
            planned, or has grown so much that all are more than `plan.max_bytes`.
    """
    if os.path.lexists(target):
        raise UserError(f"{target}: already there, and would hold another job's code; choose another job-dir")
    temporary = unforeseen(target)
    try:
        make_new_folder(temporary, 0o700)
        for parent in sorted({parent for path in plan.files for parent in Path(path).parents}):
            make_folder(temporary / parent, 0o700)
        copied = 0
        for path in plan.files:
            copied += _copy_file(plan.folder / path, temporary / path, plan.max_bytes - copied)
        rename(temporary, target)
    except OSError as error:  # those of the files read are UserErrors by now
        raise UserError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        remove_tree(temporary)
    return Snapshot(plan.commit, plan.dirty, len(plan.files), copied, plan.left_out[:MAX_LEFT_OUT])


def check_outside(folder: Path, job_dir: Path, rules: Rules | None = None) -> None:
    """Checks that `job_dir`, which need not exist, is not part of the code in `folder`. Links are followed.

    Args:
        rules: Those of the folder's Plan; read where they are not given.

    Raises:
        UserError: It is.
    """
    rules = rules or Rules(folder.resolve())
    place = job_dir.resolve()
    if not place.is_relative_to(rules.folder):
        return
    path = place.relative_to(rules.folder).as_posix()
    if path == ".":
        remedy = ""
    elif rules.leaves_out_within(path):
        return
    else:
        remedy = f", or add /{path}/ or a folder that it is in to {rules.folder / '.gitignore'}"
    raise UserError(
        f"{shown(str(job_dir))}: the job-dir lies inside {folder}, the code that is copied into it; give --root or "
        f"--job-dir outside of that{shown(remedy)}"
    )


def _relative(folder: Path, path: Path) -> str:
    """`path` relative to `folder`. Pure but for links in an absolute `path` that does not begin with `folder`."""
    if path.is_absolute():
        outside = not path.is_relative_to(folder)
        base, path = (folder.resolve(), path.parent.resolve() / path.name) if outside else (folder, path)
    else:
        base, path = folder, folder / path
    relative = os.path.relpath(path, base)
    if relative.split("/")[0] == "..":
        raise UserError(f"{path}: lies outside {folder}, the folder that is copied with the job; move it there")
    return relative


def _copy_file(source: Path, target: Path, allowed: int) -> int:
    """Copies one file; returns its bytes. UserError for what is wrong with `source`, OSError for `target`."""
    try:
        file = open_to_read(source, follow=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{shown(str(source))}: has vanished while the code was copied; submit again") from error
    except OSError as error:
        raise unreadable(source, error) from error
    with file:
        status, copied = os.fstat(file.fileno()), 0
        with open(create(target, 0o600), "wb") as copy:
            while chunk := _read(file, source):
                copied += len(chunk)
                if copied > allowed:
                    raise UserError(
                        f"{shown(str(source))}: has grown while the code was copied, and all is now more than is "
                        "allowed (--max-code-size); submit again when nothing writes there, or add it to .gitignore"
                    )
                copy.write(chunk)
            copy.flush()
            os.fchmod(copy.fileno(), status.st_mode & 0o755 | 0o400)
            os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        return copied


def _read(file: BinaryIO, path: Path) -> bytes:
    try:
        return file.read(_CHUNK_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error


def _too_much(folder: Path, sizes: Mapping[str, int], max_bytes: int, max_files: int) -> UserError:
    """Says what there is, what is allowed, what of it is largest, and what to do. Pure."""
    total = sum(sizes.values())
    if len(sizes) > max_files:
        what, allowed, more = f"more than {max_files:,} files", f"at most {max_files:,}", ""
        largest = [(path, f"{count:,}") for path, count in _largest(dict.fromkeys(sizes, 1))]
    else:
        what, allowed = f"{len(sizes):,} files of together {size(total)}", f"at most {size(max_bytes)}"
        largest = [(path, size(count)) for path, count in _largest(sizes)]
        more = "; or allow more with --max-code-size"
    return UserError(
        f"{folder}: the code to be copied into the job-dir is {what}, and {allowed} may be; most is in "
        + ", ".join(f"{shown(path)} ({amount})" for path, amount in largest)
        + f". Add what is not code to {folder / '.gitignore'}; name data by their path instead of keeping them with "
        + f"the code{more}"
    )


def _largest(amounts: Mapping[str, int], count: int = 5) -> list[tuple[str, int]]:
    """The files or folders with the largest sums of `amounts`, none in another; folders end in "/".

    A folder of which almost all is one thing in it is left out in favour of that. Pure.
    """
    sums: Counter[str] = Counter()
    children: dict[str, set[str]] = {}
    for path, amount in amounts.items():
        child = path
        while child:
            sums[child] += amount
            parent = "".join(child.removesuffix("/").rpartition("/")[:2])
            children.setdefault(parent, set()).add(child)
            child = parent
    found = []
    for top in children.get("", ()):
        while top in children:
            heaviest = max(children[top], key=lambda child: (sums[child], child))
            if sums[heaviest] < 0.9 * sums[top]:
                break
            top = heaviest
        found.append((top, sums[top]))
    return sorted(found, key=lambda one: (-one[1], one[0]))[:count]

"""The installation of hpc_train that a job runs with: which Python, which code, and whether both are still there.

A checkout can change while a job waits, so its code is copied into the job-dir when the job is submitted, and the ranks
import the copy. What is installed among Python's packages is not copied, but recognised.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from hpc_train.errors import UserError
from hpc_train.files import create, read_bytes, unforeseen
from hpc_train.folders import make_folder, make_new_folder, remove_tree, rename
from hpc_train.jobdir.paths import INSTALLATION
from hpc_train.packs.package_code import MAX_FILE_BYTES, add_file, files_of, fingerprint_of, version_of

PACKAGE = Path(__file__).parents[2]


def _path(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096 or re.search(r"[\0-\x1f\x7f]", value) or value[:1] != "/":
        raise ValueError("no path")
    return value


PathText = Annotated[str, PlainValidator(_path)]


@dataclass(frozen=True)
class Installation:
    """Which Python and which hpc_train a job was submitted with.

    Attributes:
        python: The interpreter, by its path.
        python_version: Its version: "3.11.7".
        version: Of the package.
        package: The package's folder then.
        fingerprint: Of the package's code.
        copied: The code is in the job-dir, since the folder is no installed package but a checkout, which can change.
    """

    python: PathText
    python_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+[\w.+-]{0,32}$")]
    version: Annotated[str, Field(pattern=r"^[\w.+-]{1,64}$")]
    package: PathText
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    copied: bool

    def path(self, job_dir: Path) -> Path | None:
        """What goes first on PYTHONPATH for the job in `job_dir`; None: its Python finds the package by itself."""
        return job_dir / INSTALLATION / self.fingerprint if self.copied else None

    def code(self, job_dir: Path) -> Path:
        """The folder of the package that the job runs."""
        folder = self.path(job_dir)
        return Path(self.package) if folder is None else folder / PACKAGE.name

    def __str__(self) -> str:
        return f"hpc_train {self.version} ({self.fingerprint[:8]}) in {self.package}, with Python {self.python_version}"


def this_installation() -> Installation:
    """The one that this process runs.

    Raises:
        UserError: The package cannot be read.
    """
    places = {Path(found).resolve() for name in ("purelib", "platlib") if (found := sysconfig.get_path(name))}
    try:
        fingerprint = fingerprint_of(PACKAGE)
    except OSError as error:
        raise UserError(f"{error.filename}: hpc_train itself cannot be read: {error.strerror}") from None
    return Installation(
        python=sys.executable,
        python_version=platform.python_version(),
        version=version_of(PACKAGE) or "unknown",
        package=str(PACKAGE),
        fingerprint=fingerprint,
        copied=PACKAGE.resolve().parent not in places,
    )


def copy_code(installation: Installation, job_dir: Path) -> None:
    """Copies the package into `job_dir`, for this user alone; it is there whole or not at all. Nothing where it is.

    A copy that somebody has damaged is replaced.

    Raises:
        UserError: The package has changed meanwhile.
        OSError: It cannot be written or read.
    """
    target = installation.path(job_dir)
    if target is None:
        return
    with suppress(OSError):
        if fingerprint_of(installation.code(job_dir)) == installation.fingerprint:
            os.utime(target)  # hpc-train clean leaves new ones
            return
    make_folder(target.parent, 0o700)
    temporary, digest = unforeseen(target), hashlib.sha256()
    try:
        make_new_folder(temporary, 0o700)
        for name in files_of(source := Path(installation.package)):
            content = read_bytes(source / name, MAX_FILE_BYTES, follow=True)
            add_file(digest, name, content)
            copy = temporary / source.name / name
            make_folder(copy.parent, 0o700, top=temporary)
            with os.fdopen(create(copy, 0o600), "wb") as file:
                file.write(content)
        if digest.hexdigest()[:32] != installation.fingerprint:
            raise UserError(f"{source}: has changed while the job was submitted; submit it again")
        remove_tree(target)
        rename(temporary, target)
    finally:
        remove_tree(temporary)


def problem_of(installation: Installation, job_dir: Path) -> str | None:
    """Why a job cannot run with the installation of its submission: what that was, and what is there; or None."""
    code = installation.code(job_dir)
    was = f"it was submitted with {installation}"
    if not os.access(installation.python, os.X_OK):
        return f"{was}, whose interpreter {installation.python} is gone"
    try:
        found = fingerprint_of(code)
    except FileNotFoundError:
        return f"{was}, which is gone: there is no {code}"
    except OSError as error:
        return f"{was}, which cannot be read: {error.filename}: {error.strerror}"
    if found != installation.fingerprint:
        now = version_of(code)
        what = "something else" if now is None else f"hpc_train {now} ({found[:8]})"
        return f"{was}, but {code} holds {what} by now"
    return None


def remedy(job_dir: Path) -> str:
    """What to do about it, as the end of a sentence."""
    resume = f"hpc-train resume {shlex.quote(str(job_dir))} --with-this-version"
    return f"install it again, or go on with another version: {resume}"

"""hpc-train pack: an environment as one file, which each node of a job unpacks; and removes those that are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import answer, errors, say, warn
from hpc_train.errors import UserError


@answer()
def pack(
    file: Annotated[Path | None, typer.Argument(metavar="FILE.tar", help="The pack to write.")] = None,
    venv: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The virtual environment. \\[default: that of this hpc-train]")
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove packs of `resources.pack: auto` that no job needs any more.")
    ] = False,
) -> None:
    """Pack an environment, with its Python and hpc_train, into one file for `resources.pack`."""
    with errors():
        if clean:
            if file is not None or venv is not None:
                raise UserError("--clean removes packs that are kept, and makes none: give it alone")
            _clean()
        elif file is None:
            raise UserError("give the name of the pack to write, as in hpc-train pack env.tar, or --clean")
        else:
            _make(file, (venv or Path(sys.prefix)).absolute())


def _make(file: Path, venv: Path) -> None:
    from hpc_train.packs.archive import plan_pack, write_pack
    from hpc_train.telemetry.units import counted, size

    if os.path.lexists(file):
        raise UserError(f"{file} is there; give another name, or remove it")
    planned = plan_pack(venv, warn)
    written = write_pack(file, planned)
    manifest = planned.manifest
    what = f"Python {manifest.python}, hpc_train {manifest.hpc_train}"
    say(f"{file} ({size(written.bytes)}, {counted(manifest.files, 'file')}): {what}")
    mpi = manifest.mpi or "the nodes' own MPI"
    say(f"for {manifest.machine} with glibc {manifest.libc} or newer, and {mpi}; SHA-256 {written.sha256}")


def _clean() -> None:
    from hpc_train.jobs.pack_cleaning import remove_pack, use_of
    from hpc_train.packs.cache import cache_folder, cached_packs
    from hpc_train.processes import home_folder
    from hpc_train.telemetry.units import size

    folder = cache_folder(os.environ, home_folder())
    try:
        packs = cached_packs(folder)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be cleaned: {error.strerror}") from None
    for found in packs:
        try:
            if (use := use_of(found)) is None:
                remove_pack(found)
        except OSError as error:
            use = f"{error.filename or found.path}: {error.strerror}"
        say(f"{found.path} ({size(found.bytes)}): {'removed' if use is None else f'stays: {use}'}")
    if not packs:
        say(f"{folder}: has no packs")


COMMANDS = (
    Command(
        "pack",
        pack,
        "This machine",
        examples=("hpc-train pack env.tar", "hpc-train pack env.tar --venv .venv", "hpc-train pack --clean"),
    ),
)

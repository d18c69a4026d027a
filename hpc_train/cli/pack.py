"""hpc-train pack: one file of an environment, which each node of a job unpacks on its own disk."""

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
    file: Annotated[Path, typer.Argument(metavar="FILE.tar", help="The pack to write.")],
    venv: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The virtual environment. \\[default: that of this hpc-train]")
    ] = None,
) -> None:
    """Pack an environment, with its Python and hpc_train, into one file for `resources.pack`."""
    from hpc_train.packs.archive import plan_pack, write_pack
    from hpc_train.telemetry.units import counted, size

    with errors():
        if os.path.lexists(file):
            raise UserError(f"{file} is there; give another name, or remove it")
        planned = plan_pack((venv or Path(sys.prefix)).absolute(), warn)
        written = write_pack(file, planned)
    manifest = planned.manifest
    what = f"Python {manifest.python}, hpc_train {manifest.hpc_train}"
    say(f"{file} ({size(written.bytes)}, {counted(manifest.files, 'file')}): {what}")
    mpi = manifest.mpi or "the nodes' own MPI"
    say(f"for {manifest.machine} with glibc {manifest.libc} or newer, and {mpi}; SHA-256 {written.sha256}")


COMMANDS = (
    Command("pack", pack, "This machine", examples=("hpc-train pack env.tar", "hpc-train pack env.tar --venv .venv")),
)

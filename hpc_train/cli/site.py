"""hpc-train site: what the site file sets, for the scripts in slurm/."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import answer, errors, say


@answer()
def site(
    shell: Annotated[bool, typer.Option("--shell", help="As lines of bash, to be sourced.")] = False,
) -> None:
    """Name the site file; with --shell, print what it sets for jobs that slurm/*.sh run."""
    from hpc_train.jobs.site.site import load_site, shell_lines

    with errors():
        found = load_site(os.environ)
    if shell:
        sys.stdout.write("\n".join([*shell_lines(found), ""]))
    else:
        say("there is no site file" if found.path is None else str(found.path))


COMMANDS = (Command("site", site, "This machine", hidden=True),)

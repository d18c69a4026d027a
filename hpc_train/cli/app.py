"""The command line. Exit codes are those of hpc_train.outcome."""

from __future__ import annotations

import os
import platform
import sys
from typing import Annotated

import typer

from hpc_train.cli.command import all_commands, examples
from hpc_train.cli.terminal import Verbs, complain, report_lost_output, say
from hpc_train.errors import UserError
from hpc_train.resilience.signals import StopSignals

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=examples("hpc-train launch -n 2 job.yaml", "hpc-train submit job.yaml --name first", "hpc-train list"),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from hpc_train import __version__

        say(f"hpc-train {__version__} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def about(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what helps to find a fault, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors alone.")] = False,
    log_level: Annotated[
        list[str] | None,
        typer.Option(metavar="[LOGGER=]LEVEL", help="As hpc_train.checkpoint=debug; can be given again."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train TensorFlow/Keras models on MPI ranks: one job file, HDF5 shards, exact restarts."""
    from hpc_train.telemetry.log_levels import LEVELS_VARIABLE, parse_levels

    if verbose and quiet:
        sys.exit(complain("--verbose and --quiet: give one of them"))
    given = [os.environ.get(LEVELS_VARIABLE, ""), *(["debug"] if verbose else []), *(["warning"] if quiet else [])]
    text = ",".join(filter(None, [*given, *(log_level or [])]))
    try:
        parse_levels(text)
    except UserError as error:
        sys.exit(complain(error))
    if text:  # the ranks that a command starts have it from here
        os.environ[LEVELS_VARIABLE] = text
        if context.invoked_subcommand not in ("train", "evaluate"):  # which log as ranks, once they know theirs
            from hpc_train.telemetry.logs import log_to_stderr

            log_to_stderr()


for command in all_commands():
    command.add_to(app)


def run(signals: StopSignals, asked: str | None = None) -> None:
    """Runs the command that the arguments name; `train` stops when `signals` has received one.

    Args:
        asked: Its name, where it is known: no other one is made ready then.
    """
    if only := [command for command in app.registered_commands if command.name == asked]:
        app.registered_commands, app.registered_groups = only, []
    try:
        app(prog_name="hpc-train", obj=signals)
    finally:
        report_lost_output()

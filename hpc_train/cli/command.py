"""A command of hpc-train. Each module of this package lists its own as COMMANDS; app.py finds them there."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from hpc_train import cli
from hpc_train.errors import UserError

TASKS = ("binary", "classes", "regression", "counts")
"""What a schema's `task` may be."""
JobDir = Annotated[Path, typer.Argument(metavar="JOB", help="A job's name under runs, or its job-dir.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value for a key of the job file.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]PATTERN", help="Where an evaluation set's shards lie by now; can be given again."),
]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
TableFiles = Annotated[
    list[str],
    typer.Argument(metavar="FILES...", help="A table in CSV (.csv, .tsv, also .gz), Parquet or HDF5; or patterns."),
]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="What is to be predicted.")]
TaskName = Annotated[
    str | None,
    typer.Option(metavar="TASK", help=f"{', '.join(TASKS)}. \\[default: what the label's values say]"),
]
TableColumns = Annotated[str | None, typer.Option(metavar="A,B", help="These columns alone.")]
Separator = Annotated[str | None, typer.Option(metavar="C", help="Between columns of CSV files.")]
MissingTexts = Annotated[
    str | None, typer.Option(metavar="A,B", help="What stands for a missing value, beside an empty field.")
]
SplitBy = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Rows with one value of it, such as a customer, stay together.")
]
TimeColumn = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Those to evaluate with are the latest by this column.")
]
SplitSeed = Annotated[
    int | None, typer.Option(metavar="S", min=0, help="Which rows are to evaluate with. \\[default: 0]")
]
"""Arguments and options of several commands."""

EXAMPLE_WIDTH = 76
"""Of a line of an example: what 80 columns have room for beside a margin and a backslash."""

GROUPS = ("Train", "Jobs", "Models", "Data", "This machine")
"""The panels of `hpc-train --help`, in this order."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        what: Its function, whose docstring is its help; or a Typer app with commands below it.
        group: One of GROUPS, in which the commands come by `place`.
        examples: One to three typical calls, shown below its help; an app's own commands have theirs.
        help: Of an app.
        settings: click's context settings.
    """

    name: str
    what: Callable[..., Any] | typer.Typer
    group: str = GROUPS[-1]
    place: int = 5
    examples: tuple[str, ...] = ()
    hidden: bool = False
    help: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def add_to(self, app: typer.Typer) -> None:
        """Registers it."""
        about = {"name": self.name, "hidden": self.hidden, "rich_help_panel": self.group}
        if isinstance(self.what, typer.Typer):
            app.add_typer(self.what, help=self.help, **about)  # type: ignore[arg-type]
        else:
            epilog = examples(*self.examples) if self.examples else None
            settings, text = dict(self.settings), help_of(self.what)
            app.command(context_settings=settings, help=text, epilog=epilog, **about)(self.what)  # type: ignore[arg-type]


def help_of(function: Callable[..., Any]) -> str:
    """A command's help: its docstring, whose paragraphs are wrapped by the terminal alone. Pure."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(text if text.lstrip().startswith("-") else " ".join(text.split()) for text in paragraphs)


def examples(*lines: str) -> str:
    """What is below a command's help: typical calls, each as it can be copied from a terminal of 80 columns. Pure."""
    return "\n".join(["Examples:", *map(_continued, lines)]).replace("[", "\\[")


def _continued(line: str) -> str:
    """`line` in several, each but the last with a backslash at its end, where it is too long for one.

    An option stays with its value.
    """
    rows = [""]
    for word in re.findall(r"(?:-\S+ (?!-))?(?:'[^']*'|[^ '])+", line):
        if rows[-1] and len(rows[-1]) + 1 + len(word) > EXAMPLE_WIDTH:
            rows.append(f"    {word}")
        else:
            rows[-1] = f"{rows[-1]} {word}" if rows[-1] else word
    return " \\\n".join(rows)


def all_commands() -> Iterator[Command]:
    """The commands of all modules of this package, by group."""
    names = sorted(module.name for module in pkgutil.iter_modules(cli.__path__))
    modules = [importlib.import_module(f"{cli.__name__}.{name}") for name in names if name not in ("app", "command")]
    found = [command for module in modules for command in getattr(module, "COMMANDS", ())]
    yield from sorted(found, key=lambda command: (GROUPS.index(command.group), command.place))


def named_job_dir(given: Path) -> Path:
    """The job-dir that `given`, a JobDir, names; itself where there is no such job (yet)."""
    from hpc_train.jobs.record.job_dirs import find_job_dir, root_of

    with suppress(UserError):
        return find_job_dir(str(given), root_of(None, os.environ))
    return given

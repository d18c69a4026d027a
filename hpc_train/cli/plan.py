"""hpc-train plan: what ranks will hold and send, and which way to divide a job fits, before it is queued."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpc_train.cli.command import Command, JobFile, Settings
from hpc_train.cli.terminal import answer, console, errors, say, show
from hpc_train.errors import UserError
from hpc_train.planning import MOST_RANKS
from hpc_train.telemetry.units import binary_size, counted, short_secs, short_size

if TYPE_CHECKING:
    from rich.table import Table

    from hpc_train.planning.job_plan import JobPlan
    from hpc_train.planning.links import Links
    from hpc_train.planning.options import Larger, Option

WIDTH = 80


@answer()
def plan(
    job_file: JobFile,
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, max=MOST_RANKS, help="How many ranks there will be.")],
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What each rank may take, as 80G (GiB, as in all of it). \\[default: the job's resources, or here]",
        ),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="records.jsonl of benchmarks/collectives.py. \\[default: this checkout's]"),
    ] = None,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object, in bytes.")] = False,
) -> None:
    """Show what each rank will hold and send, for each way to divide the job among ranks; and which of them fit.

    The model is built here, in one process, and a training step is traced; nothing is trained, and large variables
    take no memory.
    """
    from hpc_train.config.program import ProgramConfig, load_any
    from hpc_train.distributed.silence import without_chatter
    from hpc_train.jobs.site.tiers import load_tiers, resources_for
    from hpc_train.planning.links import measured_here, read_links

    with errors():
        job = load_any(job_file, settings or ())
        wants = resources_for(job.resources, load_tiers(os.environ, Path.home()))
        file = links or measured_here()
        measured = None if file is None else read_links(file)
        with without_chatter():
            from hpc_train.planning.job_plan import FOR, plan_job

            if isinstance(job, ProgramConfig):
                raise UserError(f"module: {job.module}: a program of its own; {FOR}")
            found = plan_job(job, job_file.absolute().parent, ranks, wants, memory)
    if as_json:
        print(json.dumps(described(found, measured)))
        return
    screen = console()
    show(screen, _table(found, measured, screen.width))
    say("\n" + "\n".join(_lines(found, measured)))


def described(found: JobPlan, measured: Links | None) -> dict[str, Any]:
    """The plan as JSON has it. Pure."""
    from hpc_train.planning.links import seconds

    def of(option: Option) -> dict[str, Any]:
        return {
            "name": option.choice.name,
            "run": option.choice.keys,
            "asked": option.asked,
            "refused": option.refused,
            "fits": option.fits(found.memory),
            "chief": asdict(option.ranks[0]) if option.ranks else None,
            "fullest_other": asdict(option.ranks[1]) if len(option.ranks) > 1 else None,
            "needs": _needs(option, found) if option.ranks else None,
            "sent": option.sent,
            "calls": [{**asdict(call), "sent": call.sent} for call in option.calls],
            "secs": seconds(measured, option.calls, found.nodes) if option.ranks else None,
        }

    def on(option: Option | None) -> dict[str, Any] | None:
        return None if option is None else {"ranks": option.choice.size, "run": option.choice.keys}

    own = asdict(found.sizes)
    del own["calls"]
    own["state"] = sum(own.pop("states"))
    return {
        "job": found.job,
        "ranks": found.ranks,
        "nodes": found.nodes,
        "batch_size": found.batch,
        "memory": asdict(found.memory),
        "links": None if measured is None else measured.where,
        "model": own,
        "options": [of(option) for option in found.options],
        "best": found.best.choice.keys if found.best else None,
        "on_more_ranks": on(found.more.fits if found.more else None),
        "tried_ranks": found.more.tried if found.more else found.ranks,
        "without_exporters": on(found.unexported),
        "rows_that_fit": found.rows,
        "notes": list(found.notes),
    }


def _needs(option: Option, found: JobPlan) -> int:
    from hpc_train.planning.options import needed

    return needed(option.most(found.memory), found.memory)


def _table(found: JobPlan, measured: Links | None, width: int) -> Table:
    from rich.text import Text

    from hpc_train.jobs.layout import Column, table_of
    from hpc_train.planning.links import seconds

    shown = [option for option in found.options if option.ranks]
    most = [option.most(found.memory) for option in shown]

    def column(title: str, values: Iterable[float | None], how: Callable[[float], str] = short_size) -> Column:
        cells = [Text("–" if value is None else how(value)) for value in values]
        return Column(title, tuple(cells), right=True)

    secs = [seconds(measured, option.calls, found.nodes) for option in shown]
    fits = {True: Text("yes", "green"), False: Text("no", "bold red"), None: Text("?")}
    return table_of(
        [
            Column("bytes a rank", tuple(Text(("> " if o.asked else "  ") + o.choice.name) for o in shown)),
            column("model", [held.model for held in most]),
            column("grad", [held.gradients for held in most]),
            column("opt", [held.optimizer for held in most]),
            column("activ", [held.activations for held in most]),
            column("room", [held.snapshot for held in most]),
            column("total", [_needs(option, found) for option in shown]),
            Column("fits", tuple(fits[option.fits(found.memory)] for option in shown)),
            column("sent", [option.sent for option in shown]),
            column("time", secs, short_secs),
        ],
        cut=True,
    )


def _lines(found: JobPlan, measured: Links | None) -> list[str]:
    """What is below the table."""
    process = next(option.ranks[0].process for option in found.options if option.ranks)
    room = "" if found.memory.nbytes is None else f"{binary_size(found.memory.nbytes)} a rank: "
    rates = "as benchmarks/collectives.py measured them" if measured else "not measured; see --links"
    about = [
        f"{counted(found.ranks, 'rank')} on {counted(found.nodes, 'node')}; > as {found.job} asks for it; each row is "
        "the rank that needs most; K, M, G, T: powers of 1024",
        f"memory: {room}{found.memory.where}",
        "model: parameters and state, and the whole model that is exported where ranks hold parts; room: for snapshots"
        + (", in the host's memory" if found.memory.device else ""),
        "" if found.memory.device else f"total: with {binary_size(process)} of Python and TensorFlow",
        f"activ: an estimate: the most that is there at once of a traced step of {counted(found.batch, 'row')}, each "
        "tensor from the operation that computes it to the last that reads it",
        f"sent: by the rank that sends most in a step; time: what that takes, {rates}"
        + (f": {measured.where}" if measured else ""),
    ]
    about += [f"{option.choice.name}: not possible: {option.refused}" for option in found.options if option.refused]
    about += [f"note: {note}" for note in found.notes]
    return [*(line for text in about if text for line in _wrapped(text)), "", *_advice(found)]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="       ", break_long_words=False, break_on_hyphens=False)


def _advice(found: JobPlan) -> list[str]:
    if found.memory.nbytes is None:
        return ["Whether it fits is not known."]
    if found.best is not None and found.best.asked:
        return [f"It fits as {found.job} asks for it."]
    if found.best is not None:
        wrong = "is not possible" if any(one.asked and one.refused for one in found.options) else "does not fit"
        return [
            f"It {wrong} as it is. The first way that fits; put into the job file:",
            *_changes(found.best, found),
        ]
    least = min(_needs(option, found) for option in found.options if option.ranks)
    lines = [f"Nothing fits on {counted(found.ranks, 'rank')}: at least {binary_size(least)} a rank are needed."]
    if (bare := found.unexported) is not None:
        exported = max(option.ranks[0].exported for option in found.options if option.ranks)
        lines += _wrapped(
            f"Without exporters ({binary_size(exported)} of it on the chief, which exports the whole model) it "
            f"fits on {counted(bare.choice.size, 'rank')}; leave them out, and export later, by `hpc-train export` on "
            "a machine with more memory:"
        )
        lines += ["    eval: {exporters: {}}", *_changes(bare, found)]
    assert found.more is not None, "it was looked for"
    if (fits := found.more.fits) is not None:
        changes = _changes(fits, found)
        how = "this does:" if changes else f"it fits as {found.job} asks for it."
        lines += [f"On {counted(fits.choice.size, 'rank')} {how}", *changes]
    elif bare is None:
        lines += _wrapped(_in_the_way(found, found.more))
    if found.rows is not None:
        lines += _wrapped(
            f"As it is, a batch of {counted(found.rows, 'row')} a rank would fit (data.train.batch_size: {found.rows})."
        )
    return lines


def _in_the_way(found: JobPlan, more: Larger) -> str:
    """Why more ranks do not help, and what does."""
    said = f"More ranks alone do not help: of up to {more.tried:,}, each needs at least {binary_size(more.least)}"
    process = next(option.ranks[0].process for option in found.options if option.ranks)
    if not found.memory.device and found.memory.nbytes is not None and process > found.memory.nbytes:
        return f"{said}, {binary_size(process)} of it for Python and TensorFlow."
    if found.table is not None:
        return (
            f"{said}. Layer {found.table!r} (keras.layers.Embedding) is most of the model, and each rank has all of "
            "it; of an ht.parallel.ShardedEmbedding in its place each holds a part of the rows."
        )
    if more.refused is not None:
        said += f"; the model is divided no further ({more.refused})"
    elif not found.divides:
        said += "; layers of ht.parallel divide parameters and activations among ranks (run.mesh)"
    return f"{said}; run.mixed_precision and run.accumulate_steps make activations smaller."


def _changes(option: Option, found: JobPlan) -> list[str]:
    """The line of the job file that makes `option` of it, where there is one to change."""
    asked = next(one.choice for one in found.options if one.asked)
    return [] if option.choice.keys == asked.keys else [f"    {option.choice.line(asked)}"]


COMMANDS = (
    Command(
        "plan",
        plan,
        "Jobs",
        place=0,
        examples=(
            "hpc-train plan job.yaml --ranks 8",
            "hpc-train plan job.yaml --ranks 64 --memory 80G --set data.train.batch_size=16",
            "hpc-train plan job.yaml --ranks 8 --links results/records.jsonl --json",
        ),
    ),
)

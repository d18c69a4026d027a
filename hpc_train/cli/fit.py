"""hpc-train fit: from a table to a trained model in one command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpc_train.cli.command import (
    Command,
    Label,
    MissingTexts,
    Separator,
    SplitBy,
    SplitSeed,
    TableColumns,
    TableFiles,
    TaskName,
    TimeColumn,
)
from hpc_train.cli.terminal import complain, errors, say
from hpc_train.lazy import importing
from hpc_train.outcome import EXIT_FAILED

if TYPE_CHECKING:
    from hpc_train.jobs.fit.folder import FitFolder

MODELS = ("linear", "dnn", "wide_deep", "gbdt")


def fit(
    files: TableFiles,
    label: Label = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where all is made. \\[default: called as the first file]")
    ] = None,
    model: Annotated[str, typer.Option(metavar="MODEL", help=f"{', '.join(MODELS)}.")] = "dnn",
    evaluation: Annotated[
        list[str] | None,
        typer.Option("--eval", metavar="FILE", help="Another table, to evaluate with; may be repeated."),
    ] = None,
    split: Annotated[
        float | None, typer.Option(metavar="FRACTION", help="Of the rows are to evaluate with. \\[default: 0.2]")
    ] = None,
    split_by: SplitBy = None,
    time: TimeColumn = None,
    seed: SplitSeed = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A schema that you have reviewed, in place of one found out.")
    ] = None,
    task: TaskName = None,
    columns: TableColumns = None,
    separator: Separator = None,
    missing: MissingTexts = None,
    most_values: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10_000, help="Values of a vocabulary at most. \\[default: 1000]"),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", min=1, help="How many. \\[default: what the rows keep busy]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another value for a key of the job file that is made."),
    ] = None,
) -> None:
    """Train a model of a table: finds its schema, makes shards and a job file, trains, evaluates, exports.

    All is made in a folder, by commands that it shows, and that you can go on with. A run that was stopped, or killed,
    goes on where it was when it is started again.
    """
    with importing():
        from hpc_train.distributed.launcher import launched_ranks
        from hpc_train.errors import UserError
        from hpc_train.jobs.fit.folder import FitFolder
        from hpc_train.jobs.fit.request import FitRequest
        from hpc_train.jobs.fit.stages import StageError, Stages
        from hpc_train.jobs.launch.launchers.mpirun import Mpirun
        from hpc_train.jobs.site.site import adopt

    with errors():
        adopt(os.environ)
        if launched_ranks() > 1:
            raise UserError("hpc-train fit starts its ranks by itself, see --ranks; start it without mpirun")
        if model not in MODELS:
            raise UserError(f"--model {model}: allowed: {', '.join(MODELS)}")
        kind: Any = model
        request = FitRequest(
            files=tuple(files),
            model=kind,
            eval=tuple(evaluation or ()),
            schema=schema,
            label=label,
            task=task,
            split=split,
            seed=seed,
            split_by=split_by,
            time=time,
            columns=columns,
            separator=separator,
            missing=missing,
            most_values=most_values,
            settings=tuple(settings or ()),
            ranks=ranks,
        )
        folder = FitFolder.of(out, request)
        try:
            code = Stages(request, folder, Mpirun(), len(os.sched_getaffinity(0)), say).run()
        except StageError as failed:
            code = failed.code
        if code == 0:
            code = _show(folder)
    sys.exit(code)


def _show(folder: FitFolder) -> int:
    """What has been made, and how to go on; returns the exit code."""
    import shlex

    from hpc_train.errors import UserError
    from hpc_train.jobdir.paths import EXPORTS, REPORT_FILE
    from hpc_train.report import words
    from hpc_train.report.numbers import best_metrics_of, best_of

    job_dir = folder.job_dir
    history = job_dir.history()
    metric = next(iter(best_metrics_of(history)), None)
    best = best_of(history, "eval", str(metric)) if metric is not None else None
    if best is not None and (metrics := job_dir.evaluations().get("eval", {}).get(best.step)):
        shown = ", ".join(f"{words.label(name)} {words.number(value)}" for name, value in metrics.items())
        say(f"best evaluation, step {best.step}: {shown}")
    say(f"report: {job_dir.path / REPORT_FILE}")
    made = {name for name, exports in job_dir.exports().items() if exports}
    if not made:
        errors_of_exports = job_dir.status().get("export_errors") or [{}]
        why = errors_of_exports[-1].get("error") or "job.yaml has no exporter"
        complain(UserError(f"there is no model to predict with: {why}"))
        return EXIT_FAILED
    export = job_dir.path / EXPORTS / ("best" if "best" in made else min(made))
    say(f"model:  {export}")
    named = shlex.join(["hpc-train", "predict", str(export), "--table", "NEW.csv", "--out", "predictions.csv"])
    say(f"next:   {named}")
    return 0


COMMANDS = (
    Command(
        "fit",
        fit,
        "Train",
        place=0,
        examples=(
            "hpc-train fit data.csv --label income",
            "hpc-train fit 'sales-*.parquet' --label returned --time sold --out returns",
            "hpc-train fit data.csv --schema reviewed.yaml --model gbdt --ranks 4",
        ),
    ),
)

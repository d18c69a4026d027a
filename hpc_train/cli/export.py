"""hpc-train export and hpc-train predict: a job's model as a SavedModel, and what one predicts of shards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from hpc_train.cli.command import Command, Data, JobDir, named_job_dir
from hpc_train.cli.terminal import errors, say, warn
from hpc_train.errors import UserError

BATCH_ROWS, TABLE_BATCH_ROWS = 256, 4096
"""Rows that are predicted together; models of tables are small, so that calls cost more than rows."""


def export(
    job_dir: JobDir,
    step: Annotated[int | None, typer.Option(help="Of the checkpoint. \\[default: the newest]")] = None,
    name: Annotated[str, typer.Option(help="The folder below JOBDIR/export.")] = "manual",
    out: Annotated[Path | None, typer.Option(help="The folder to export into. \\[default: JOBDIR/export/NAME]")] = None,
    data: Data = None,
    tables: Annotated[
        Literal["auto", "whole", "shards"],
        typer.Option(
            help="Where tables of ht.parallel.ShardedEmbedding go: into the model, or into shards beside it; auto: "
            "into the model where it fits into memory."
        ),
    ] = "auto",
) -> None:
    """Export a job's model as a SavedModel from a checkpoint, while the job runs or later.

    It runs the job's code, which builds the model.
    """
    from hpc_train.distributed.devices import set_up_tensorflow
    from hpc_train.distributed.excepthook import report_error
    from hpc_train.distributed.startup import join_world

    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # the job may be using the GPU
    with errors():
        world = join_world()
        if world.size > 1:
            raise UserError("hpc-train export is for one process; start it without mpirun")
    try:
        set_up_tensorflow(world)
        from hpc_train.export.from_checkpoint import export_checkpoint

        made = export_checkpoint(named_job_dir(job_dir), step, name, out, data or (), tables)
    except Exception as error:
        sys.exit(report_error(world, error))
    say(f"export of step {made.step}: {made.path}{', its tables in shards' if made.in_shards else ''}")


def predict(
    export_path: Annotated[
        Path, typer.Argument(metavar="EXPORT", help="An export, or an exporter's folder: its newest one.")
    ],
    out: Annotated[
        str,
        typer.Option(help="Where to: a * stands for what the * of --shards stands for; of a table a .csv or .parquet."),
    ],
    shards: Annotated[
        list[str] | None, typer.Option(help="HDF5 files, or a glob of them in quotes; may be repeated.")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Instead of shards a table, in CSV, Parquet or HDF5; may be repeated. Of built-in models.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Columns of the table to be kept. \\[default: those with role id]"),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Rows that are predicted together. \\[default: {BATCH_ROWS} of shards, {TABLE_BATCH_ROWS} of tables]",
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[INPUT=]DATASET", help="Datasets to read; may be repeated. \\[default: the inputs' names]"
        ),
    ] = None,
    pad: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATASET=VALUE[:LENGTH]",
            help="Pad rows of different lengths; may be repeated. \\[default: as in training]",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
) -> None:
    """Predict the rows of shards, or of a table, with an export. Run it alone, or on each rank under mpirun.

    A SavedModel can read and write files as you: predict with those that you trust alone.

    A run over shards that was cut short goes on where it was when it is started again.
    """
    from hpc_train.distributed.devices import set_up_tensorflow
    from hpc_train.distributed.excepthook import report_error
    from hpc_train.distributed.startup import join_world
    from hpc_train.inference.exported_model import newest_export
    from hpc_train.inference.loaded_export import load_export
    from hpc_train.inference.predictor import predict_shards

    with errors():
        _check_sources(shards, table, {"--features": features, "--pad": pad}, keep)
        world = join_world()
    try:
        set_up_tensorflow(world)
        chosen = Path(world.on_chief(lambda: str(newest_export(export_path))))
        loaded = world.each(lambda: load_export(chosen, world.cores))
        if table:
            from hpc_train.inference.table_predictor import TableRequest, predict_table

            columns = None if keep is None else tuple(filter(None, map(str.strip, keep.split(","))))
            request = TableRequest(tuple(table), Path(out), columns, batch_size or TABLE_BATCH_ROWS, overwrite)
            done = predict_table(world, loaded, request, warn)
        else:
            rows = batch_size or BATCH_ROWS
            done = predict_shards(world, loaded, shards or (), out, rows, features or (), overwrite, say, pad or ())
    except Exception as error:
        sys.exit(report_error(world, error))
    if world.is_chief:
        speed = f", {done.rows / done.secs:,.0f} rows/s" if done.rows else ""
        before = f"; {done.rows_before:,} rows were there" if done.rows_before else ""
        say(f"done: {done.rows:,} rows predicted in {done.secs:.1f} s{speed}{before}")


def _check_sources(
    shards: list[str] | None, table: list[str] | None, of_shards: dict[str, list[str] | None], keep: str | None
) -> None:
    """UserError where what is to be predicted is not said, or by options that do not go together."""
    if bool(shards) == bool(table):
        raise UserError("give --shards or --table, one of them: what is to be predicted")
    if table and (other := next((name for name, value in of_shards.items() if value), None)):
        raise UserError(f"{other}: is for --shards; of a table the export knows it")
    if shards and keep is not None:
        raise UserError("--keep: is for --table; predictions of shards lie in files of their own")


COMMANDS = (
    Command(
        "export",
        export,
        "Models",
        examples=("hpc-train export runs/mine", "hpc-train export runs/mine --step 800 --name earlier"),
    ),
    Command(
        "predict",
        predict,
        "Models",
        examples=(
            "hpc-train predict runs/mine/export/final --shards 'data/test-*.h5' --out 'preds-*.h5'",
            "hpc-train predict people/runs/people/export/best --table new.csv --out preds.csv",
        ),
    ),
)

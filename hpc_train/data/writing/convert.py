"""Converts files of other formats to shards: `hpc-train shard`. A conversion that was killed goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_train.data.hdf5.input_file import Consent
from hpc_train.data.sources import Named, expand, open_part
from hpc_train.data.sources.combine import ConvertedTable, JoinedTable, combine
from hpc_train.data.sources.idx import read_idx
from hpc_train.data.sources.recipe import parse_recipe
from hpc_train.data.sources.spool import Report, Spool
from hpc_train.data.sources.table import Field, Table
from hpc_train.data.writing import resume_plan
from hpc_train.data.writing.shard_file import Storage
from hpc_train.data.writing.writer import check_rows, nothing, spooled, write_tables
from hpc_train.errors import UserError
from hpc_train.files import is_ours

__all__ = ["Options", "Written", "convert", "read_idx"]

MAX_SHARDS = 99_999


@dataclass(frozen=True)
class Options:
    """The options of `hpc-train shard`, as they are given.

    Attributes:
        columns, stack, dtype: See hpc_train.data.sources.recipe.
        header: Whether the first line of a CSV file names its columns.
        compression, chunk_rows: See `Storage`.
        external: Files that HDF5 sources may lead to; paths and globs.
    """

    shards: int = 8
    shuffle: bool = False
    seed: int = 0
    compression: str = "none"
    chunk_rows: int | None = None
    columns: str | None = None
    stack: Sequence[str] = ()
    dtype: Sequence[str] = ()
    header: bool = True
    external: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= MAX_SHARDS:
            raise UserError(f"--shards {self.shards}: give 1 to {MAX_SHARDS}")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: give 0 or more")

    def to_plan(self) -> dict[str, Any]:
        """By the names that they have on the command line."""
        given = {name.replace("_", "-"): value for name, value in asdict(self).items()}
        header = given.pop("header")
        return {**given, "no-header": not header}


@dataclass(frozen=True)
class Written:
    """What a conversion wrote.

    Attributes:
        paths: All shards.
        kept: How many of them were there already, from an earlier run.
    """

    rows: int
    fields: Sequence[Field]
    paths: Sequence[Path]
    kept: int


def convert(prefix: str | Path, sources: Sequence[str], options: Options, report: Report = nothing) -> Written:
    """Writes the rows of `sources` as shards `<prefix>-00000.h5` …. Local; memory is bounded whatever their size.

    A file `.<name>.plan.json` stays beside the shards: with it the same command goes on where a run was killed.

    Args:
        prefix: Folder and beginning of the file names.
        sources: FILE or NAME=FILE each; files with the same columns follow each other, others are joined by row.

    Raises:
        UserError: Options or sources that cannot be used, or shards of another command there.
        OSError: Something cannot be written; the message is a sentence with path and cause.
    """
    if str(prefix).endswith("/") or Path(prefix).name in ("", ".."):
        raise UserError(f"PREFIX {prefix}: give the beginning of the file names too, as in data/train")
    prefix, storage = Path(prefix), Storage(options.compression, options.chunk_rows)
    recipe = parse_recipe(options.columns, options.stack, options.dtype)
    files, consent = expand(sources), Consent(tuple(options.external))
    _check_twice(files)
    tables = combine([open_part(name, path, recipe, options.header, consent) for name, path in files], recipe)
    check_rows(tables, options.shards)
    with resume_plan.alone(prefix):
        try:
            here = _begin(prefix, options, files)
            filled = _fill(prefix, tables, options, here, report)
            typed: list[Table] = [
                ConvertedTable(t, recipe.kinds, recipe.targets) if recipe.kinds else t for t in filled
            ]
            rows, kept = check_rows(typed, options.shards), len(resume_plan.shards(prefix))
            paths = write_tables(prefix, typed, options.shards, storage, options.shuffle, options.seed, report)
            resume_plan.clean(prefix)
        except UserError:
            if not resume_plan.shards(prefix):
                resume_plan.clean(prefix, plan=True)
            raise
    return Written(rows, [field for table in typed for field in table.fields.values()], paths, kept)


def _check_twice(files: Sequence[Named]) -> None:
    seen: set[tuple[str, Path]] = set()
    for name, path in files:
        if (name, path.resolve()) in seen:
            raise UserError(f"{path}: named twice")
        seen.add((name, path.resolve()))


def _begin(prefix: Path, options: Options, files: Sequence[Named]) -> resume_plan.Plan:
    """The plan of this run, written down; what earlier runs left is removed, unless this run can use it."""
    here = resume_plan.Plan(prefix, options.to_plan(), files)
    differences, there = here.differences(), resume_plan.shards(prefix)
    if differences == []:
        resume_plan.clean(prefix, spools=False)
        return here
    if there:
        why = "and not from this command; remove them or choose another prefix"
        if differences:
            why = (
                f"from another command: {'; '.join(differences)}. Give that command again to go on with it, remove "
                f"{prefix}-*.h5 to start anew, or choose another prefix"
            )
        raise UserError(f"{there[0]}: already there, with {len(there) - 1} more, {why}")
    resume_plan.clean(prefix)
    here.write()
    return here


def _fill(
    prefix: Path, tables: Sequence[JoinedTable], options: Options, here: resume_plan.Plan, report: Report
) -> list[JoinedTable | Spool]:
    """The tables, those that need a spool in one: the one of an earlier run where it is whole."""
    filled: list[JoinedTable | Spool] = []
    for number, table in enumerate(tables):
        path = prefix.parent / f".{prefix.name}.spool-{number}"
        if str(number) in here.spools and is_ours(path):
            with suppress(KeyError, TypeError, ValueError):  # a plan that is not what was written: it is filled anew
                filled.append(Spool.from_json(path, here.spools[str(number)]))
                continue
        filled.append(spooled(table, prefix, number, options.shuffle, report))
        if isinstance(filled[-1], Spool):
            here.spools[str(number)] = filled[-1].to_json()
            here.write()
    return filled

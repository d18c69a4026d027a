"""Converts files of other formats to shards: `hpc-train shard`. A conversion that was killed goes on where it was.

With --split it writes several sets of shards, each of a prefix with a plan and a lock of its own; all plans are of the
whole command, so that shards of another one are found whichever set they are of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_train.config.row_split import RowSplit
from hpc_train.config.table_schema import TableSchema, read_schema
from hpc_train.data.hdf5.input_file import Consent
from hpc_train.data.sampling.shuffle import Shuffle
from hpc_train.data.sources import Named, expand, open_part
from hpc_train.data.sources.combine import ConvertedTable, JoinedTable, combine
from hpc_train.data.sources.idx import read_idx
from hpc_train.data.sources.recipe import Part, Recipe, parse_recipe
from hpc_train.data.sources.split import (
    BY_NAMES,
    SETS,
    TEST,
    TRAIN,
    RowsOfSet,
    Split,
    check_alike,
    common_names,
    files_by_set,
    parse_split,
    parts_by_set,
    rows_of_fraction,
)
from hpc_train.data.sources.spool import Report, Spool
from hpc_train.data.sources.table import Field, ShuffledTable, Table
from hpc_train.data.tables.part import TablePart
from hpc_train.data.writing import resume_plan
from hpc_train.data.writing.storage import Storage
from hpc_train.data.writing.writer import check_rows, nothing, ordered, rows_of, spooled, write_tables
from hpc_train.errors import UserError
from hpc_train.files import is_ours
from hpc_train.text import listed

__all__ = ["Options", "Written", "convert", "read_idx"]

MAX_SHARDS = 99_999


@dataclass(frozen=True)
class Options:
    """The options of `hpc-train shard`, as they are given.

    Attributes:
        columns, stack, dtype: See hpc_train.data.sources.recipe.
        split: See hpc_train.data.sources.split: BY_NAMES, or a fraction of the rows. With a schema BY_NAMES stands for
            what it says.
        header: Whether the first line of a CSV file names its columns; None: it does, and is refused where it looks
            otherwise.
        compression, chunk_rows: See `Storage`.
        external: Files that HDF5 sources may lead to; paths and globs.
        schema: The schema of a table: the sources are its files, and it says what is made of them.
    """

    shards: int = 8
    shuffle: bool = False
    seed: int = 0
    compression: str = "none"
    chunk_rows: int | None = None
    columns: str | None = None
    stack: Sequence[str] = ()
    dtype: Sequence[str] = ()
    split: str | float | None = None
    header: bool | None = None
    external: Sequence[str] = ()
    schema: str | Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= MAX_SHARDS:
            raise UserError(f"--shards {self.shards}: give 1 to {MAX_SHARDS}")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: give 0 or more")
        if self.schema is not None:
            chosen = {"columns": self.columns, "stack": self.stack, "dtype": self.dtype, "header": self.header}
            if other := next((name for name, value in chosen.items() if value not in (None, (), [])), None):
                raise UserError(f"--{other}: with --schema, that says what is made of the columns; edit the schema")

    def to_plan(self) -> dict[str, Any]:
        """By the names that they have on the command line."""
        given = {name.replace("_", "-"): value for name, value in asdict(self).items()}
        if self.schema is not None:
            given["schema"] = hashlib.sha256(self.table_schema().to_yaml().encode()).hexdigest()[:16]
        return {**given, "split": parse_split(self.split)}

    def table_schema(self) -> TableSchema:
        """What `schema` says.

        Raises:
            UserError: It cannot be read.
        """
        assert self.schema is not None
        return read_schema(Path(self.schema))

    def row_split(self) -> RowSplit | None:
        """Which rows are to evaluate with; None: there is no split, or it is by names.

        Raises:
            UserError: It is not that of the schema, or neither says one.
        """
        given, seed = parse_split(self.split), self.seed
        if given is None or (given == BY_NAMES and self.schema is None):
            return None
        said = None if self.schema is None else self.table_schema().split
        if said is None:
            if given == BY_NAMES:
                raise UserError(f"--split: {self.schema} does not say which rows; give a fraction, as in --split 0.1")
            return RowSplit(fraction=float(given), seed=seed)
        fits = given == BY_NAMES
        if said.column is None:
            fits = (given, seed) == (said.fraction, said.seed) or (fits and seed in (0, said.seed))
        if not fits:
            raise UserError(
                f"--split: {self.schema} says that other rows are to evaluate with, which its statistics leave out; "
                "give --split alone, without --seed, for those, or write the schema anew"
            )
        return said


@dataclass(frozen=True)
class Written:
    """What a conversion wrote of one set.

    Attributes:
        paths: All shards.
        kept: How many of them were there already, from an earlier run.
    """

    rows: int
    fields: Sequence[Field]
    paths: Sequence[Path]
    kept: int


@dataclass(frozen=True)
class _Group:
    """Tables that are read together, and the sets that their rows are for, each a prefix of its own.

    Attributes:
        split: Which rows are for the second set, where there are two.
    """

    prefixes: Sequence[Path]
    tables: Sequence[JoinedTable]
    split: RowSplit | None = None


def convert(
    prefix: str | Path, sources: Sequence[str], options: Options, report: Report = nothing
) -> tuple[Written, ...]:
    """Writes the rows of `sources` as shards `<prefix>-00000.h5` …. Local; memory is bounded whatever their size.

    A file `.<name>.plan.json` stays beside the shards: with it the same command goes on where a run was killed.

    Args:
        prefix: Folder and beginning of the file names; with `options.split` the folder alone, in which each set has
            shards of its name: `train-00000.h5` … and `test-00000.h5` ….
        sources: FILE or NAME=FILE each; files with the same columns follow each other, others are joined by row.

    Returns: A Written for each set.

    Raises:
        UserError: Options or sources that cannot be used, or shards of another command there.
        OSError: Something cannot be written; the message is a sentence with path and cause.
    """
    split, storage = parse_split(options.split), Storage(options.compression, options.chunk_rows)
    rule = options.row_split()
    where = _place(str(prefix), split)
    recipe = parse_recipe(options.columns, options.stack, options.dtype)
    files, consent = expand(sources), Consent(tuple(options.external))
    _check_twice(files)
    parts = _parts(files, recipe, options, consent)
    if split == BY_NAMES and rule is None:
        recipe = common_names(recipe)
    groups = _groups(where, parts, recipe, split, rule)
    for group in groups:
        check_rows(group.tables, options.shards if split is None else 1)
    prefixes = [prefix for group in groups for prefix in group.prefixes]
    with ExitStack() as stack:
        for prefix in prefixes:
            stack.enter_context(resume_plan.alone(prefix))
        try:
            plans = _begin(prefixes, options, files)
            sets: dict[Path, Sequence[Table]] = {}
            for group in groups:
                filled = _fill(group, options, plans[group.prefixes[0]], report)
                typed: list[Table] = [
                    ConvertedTable(t, recipe.kinds, recipe.targets) if recipe.kinds else t for t in filled
                ]
                sets |= _sets(group, typed, options.shuffle, options.seed)
            check_alike({prefix.name: tables for prefix, tables in sets.items()})
            rows = {prefix: rows_of(tables) or 0 for prefix, tables in sets.items()}
            if rule is not None and (empty := next((prefix for prefix in sets if not rows[prefix]), None)):
                raise UserError(f"--split: no row of {listed(sources)} is for {empty.name}, by the schema's split")
            shards = [options.shards] if split is None else files_by_set(list(rows.values()), options.shards)
            for tables, count in zip(sets.values(), shards, strict=True):
                check_rows(tables, count)
            kept = {prefix: len(resume_plan.shards(prefix)) for prefix in prefixes}
            written = []
            for (prefix, tables), count in zip(sets.items(), shards, strict=True):
                paths = write_tables(prefix, tables, count, storage, report)
                fields = [field for table in tables for field in table.fields.values()]
                written.append(Written(rows[prefix], fields, paths, kept[prefix]))
            for prefix in prefixes:
                resume_plan.clean(prefix)
        except UserError:
            for prefix in prefixes:
                if not resume_plan.shards(prefix):
                    resume_plan.clean(prefix, plan=True)
            raise
    return tuple(written)


def _place(prefix: str, split: Split) -> Path:
    """The prefix, or the folder of a split.

    Raises:
        UserError: It is the other of the two.
    """
    path = Path(prefix)
    if split is not None:
        if not prefix.endswith("/") and path.name.lower() in SETS and not path.is_dir():
            raise UserError(
                f"PREFIX {prefix}: --split names the files itself, train-00000.h5 and so on; give the folder alone, "
                f"{path.parent}/, or {prefix}/ if that is what the folder is called"
            )
        return path
    if prefix.endswith("/") or path.name in ("", ".."):
        raise UserError(
            f"PREFIX {prefix}: give the beginning of the file names too, as in data/train; with --split, which writes "
            "a train and a test set, the folder will do"
        )
    return path


def _parts(files: Sequence[Named], recipe: Recipe, options: Options, consent: Consent) -> Sequence[Part]:
    """What the sources hold."""
    if options.schema is None:
        return [open_part(name, path, recipe, options.header, consent) for name, path in files]
    schema = options.table_schema()
    if named := next((name for name, _ in files if name), None):
        raise UserError(f"{named}=…: with --schema give files of the table alone")
    return [TablePart(path, schema) for _, path in files]


def _groups(where: Path, parts: Sequence[Part], recipe: Recipe, split: Split, rule: RowSplit | None) -> list[_Group]:
    if rule is not None and rule.column is not None:
        sides = {TRAIN: False, TEST: True}
        own = {name: [part.side(side) for part in parts if isinstance(part, TablePart)] for name, side in sides.items()}
        return [_Group([where / name], combine(found, recipe)) for name, found in own.items()]
    if split == BY_NAMES and rule is None:
        return [_Group([where / name], combine(own, recipe)) for name, own in parts_by_set(parts, recipe).items()]
    tables = combine(parts, recipe)
    if rule is None:
        return [_Group([where], tables)]
    return [_Group([where / TRAIN, where / TEST], tables, rule)]


def _sets(group: _Group, tables: Sequence[Table], shuffled: bool, seed: int) -> dict[Path, Sequence[Table]]:
    """What each set of a group is written from."""
    rows = rows_of(tables) or 0
    if group.split is None:
        return {group.prefixes[0]: ordered(tables, shuffled and rows > 0, seed)}
    cut, order = rows_of_fraction(rows, group.split.fraction), Shuffle(rows, group.split.seed)
    kind = ShuffledTable if shuffled else RowsOfSet
    train, test = group.prefixes
    return {
        train: [kind(table, order, cut, rows) for table in tables],
        test: [kind(table, order, 0, cut) for table in tables],
    }


def _check_twice(files: Sequence[Named]) -> None:
    seen: set[tuple[str, Path]] = set()
    for name, path in files:
        if (name, path.resolve()) in seen:
            raise UserError(f"{path}: named twice")
        seen.add((name, path.resolve()))


def _begin(prefixes: Sequence[Path], options: Options, files: Sequence[Named]) -> dict[Path, resume_plan.Plan]:
    """The plans of this run, written down once all prefixes are found to do.

    What earlier runs left is removed, unless this run can use it.
    """
    plans = {prefix: resume_plan.Plan(prefix, options.to_plan(), files) for prefix in prefixes}
    differences = {prefix: plan.differences() for prefix, plan in plans.items()}
    there = [path for prefix in prefixes if differences[prefix] != [] for path in resume_plan.shards(prefix)]
    if len(prefixes) > 1:
        _refuse_sets_beside(prefixes)
    if there:
        why = "and not from this command; remove them or choose another prefix"
        if found := [text for texts in differences.values() for text in texts or ()]:
            shards = " and ".join(f"{prefix}-*.h5" for prefix in prefixes if resume_plan.shards(prefix))
            why = (
                f"from another command: {'; '.join(dict.fromkeys(found))}. Give that command again to go on with it, "
                f"remove {shards} to start anew, or choose another prefix"
            )
        raise UserError(f"{there[0]}: already there, with {len(there) - 1} more, {why}")
    for prefix, plan in plans.items():
        resume_plan.clean(prefix, spools=differences[prefix] != [])
        if differences[prefix] != []:
            plan.write()
    return plans


def _refuse_sets_beside(prefixes: Sequence[Path]) -> None:
    """UserError where another split wrote sets that this one has not, which would stay beside its own."""
    names = {prefixes[0].parent / name for name in SETS.values()}
    beside = sorted(prefix for prefix in names.difference(prefixes) if resume_plan.is_of_split(prefix))
    if left := [path for prefix in beside for path in resume_plan.shards(prefix)]:
        raise UserError(
            f"{left[0]}: already there, with {len(left) - 1} more, of another --split, which this one does not "
            "replace; remove them or choose another folder"
        )


def _fill(group: _Group, options: Options, here: resume_plan.Plan, report: Report) -> list[JoinedTable | Spool]:
    """The tables, those that need a spool in one: the one of an earlier run where it is whole."""
    prefix = group.prefixes[0]
    filled: list[JoinedTable | Spool] = []
    for number, table in enumerate(group.tables):
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

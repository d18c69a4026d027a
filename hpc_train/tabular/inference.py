"""The schema of a table, found from its rows by all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from hpc_train.config.row_split import RowSplit, date_of
from hpc_train.config.table import Table
from hpc_train.config.table_schema import ORDERED, TableSchema, Task
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.tables.csv_file import CSVFile
from hpc_train.data.tables.evaluation_rows import NoTimeError, by_number, by_value, times_of
from hpc_train.data.tables.rows import is_there
from hpc_train.data.tables.table_file import TableFile
from hpc_train.distributed.world import World
from hpc_train.errors import UserError, did_you_mean
from hpc_train.mapreduce.quantiles import Quantiles
from hpc_train.mapreduce.reducer import Together
from hpc_train.mapreduce.reduction import reduce_blocks
from hpc_train.mapreduce.table_blocks import TableBlocks, table_blocks
from hpc_train.mapreduce.table_types import ColumnType, Part
from hpc_train.tabular.column_facts import ColumnFacts, FactsReducer
from hpc_train.tabular.roles import (
    MANY_WORDS,
    MOST_CLASSES,
    column_schema,
    label_of,
    label_schema,
    left_out,
    with_a_name,
)
from hpc_train.text import listed

State = dict[str, Any]
SPLIT_BY = "decides which rows are to evaluate with, whose values training never sees; left out"
BORDER_ERROR = 0.0005
"""Of the rows that are on either side of a time."""
MOST_VALUES = 1000
"""Of a vocabulary, where nothing else is asked for."""


def infer_schema(
    world: World,
    table: Table,
    label: str | None = None,
    task: Task | None = None,
    split: RowSplit | None = None,
    most_values: int = MOST_VALUES,
) -> TableSchema:
    """The schema of `table`. Collective; the same on any number of ranks.

    All rows are read twice: their texts decide the types of columns, and the rows for training all else. Rows without
    a label count nowhere.

    Args:
        label: The column that is to be predicted; None: there is none.
        task: What it is; None: its values say.
        split: Rows that are not for training, of which `after` is found here; None: all are.
        most_values: Values that a vocabulary has at most.

    Raises:
        UserError: On all ranks: files that cannot be read, a label that is not there, or one that teaches nothing; a
            split with no rows on one side.
    """
    blocks = table_blocks(world, table, look=True, label=label)
    assert blocks.types is not None
    chosen = TrainingRows(world.each(lambda: _checked(split, blocks, label)), blocks)
    chosen.find_border(world)
    facts = _facts(world, blocks, label, chosen, most_values)
    return world.each(lambda: _schema(table, blocks, facts, label, task, chosen.split, most_values))


def _checked(split: RowSplit | None, blocks: TableBlocks, label: str | None) -> RowSplit | None:
    """`split`; UserError where it is by a column that cannot decide."""
    if split is None or (name := split.column) is None:
        return split
    option = "--time" if split.time is not None else "--split-by"
    if name not in blocks.columns:
        near = did_you_mean(name, blocks.columns)
        raise UserError(f"{option} {name}: there is no such column; {near}the columns are {listed(blocks.columns)}")
    if name == label:
        raise UserError(f"{option} {name}: that is the label; split by another column")
    if split.time is not None and (kind := blocks.columns[name].type) not in ORDERED:
        raise UserError(f"{option} {name}: its values are of type {kind}; give a column of numbers or dates")
    return split


class TrainingRows:
    """Which rows are for training.

    Args:
        split: Which are not; None: all are. Its border may be unknown yet.
        blocks: Of the table, whose types have been found.
    """

    def __init__(self, split: RowSplit | None, blocks: TableBlocks) -> None:
        self.split, self._blocks = split, blocks
        self._evaluation: np.ndarray | None = None
        if split is not None and split.column is None:
            assert blocks.types is not None
            self._evaluation = by_number(split, blocks.types.rows)

    def find_border(self, world: World) -> None:
        """The time after which rows are to evaluate with, where a time decides. Collective."""
        split = self.split
        if split is None or split.time is None:
            return
        name, quantiles = split.time, Quantiles([1 - split.fraction], BORDER_ERROR)

        def add(state: State, part: Part) -> State:
            with self._placed(part):
                return quantiles.add(state, times_of(self._blocks.values(part, name)))

        state = reduce_blocks(world, self._blocks.raw, add, quantiles)
        border = float(quantiles.result(state)["values"][0])
        is_date = self._blocks.columns[name].type == "date"
        self.split = split.model_copy(update={"after": date_of(border) if is_date else border})

    def is_training(self, part: Part, counted: np.ndarray) -> np.ndarray:
        """Of each row of a Part that counts whether it is for training: bool `[rows that count]`.

        Args:
            counted: Which rows of the Part count, bool `[rows]`.
        """
        rows = int(counted.sum())
        if self._evaluation is not None:
            assert self._blocks.types is not None
            first = self._blocks.types.firsts[part.block, part.row]
            training: np.ndarray = ~self._evaluation[first : first + rows]
            return training
        if self.split is None or self.split.column is None:
            return np.ones(rows, bool)
        with self._placed(part):
            evaluation = by_value(self.split, self._blocks.values(part, self.split.column))
        others: np.ndarray = ~evaluation[counted]
        return others

    @contextmanager
    def _placed(self, part: Part) -> Iterator[None]:
        try:
            yield
        except NoTimeError as error:
            assert self.split is not None
            place = self._blocks.raw.place(part.block, part.row + error.row)
            raise UserError(f"{place}: column {self.split.time!r} {error.text}; mend it, or {error.way}") from None


def _facts(
    world: World, blocks: TableBlocks, label: str | None, chosen: TrainingRows, most_values: int
) -> dict[str, ColumnFacts]:
    """What is counted of each column over the rows for training."""
    assert blocks.types is not None
    types = blocks.types.by_column
    label_type = None if label is None else blocks.columns[label].type
    # Pairs of a value and a label are of use where the label can be a class.
    paired = label_type if label_type in ("text", "boolean", "integer") else None
    reducers = {
        name: FactsReducer(column.type, _has_words(types[name]), most_values, paired)
        for name, column in blocks.columns.items()
    }
    if label is not None and label_type is not None:
        reducers[label] = FactsReducer(label_type, False, MOST_CLASSES, None)
    together = Together(reducers)

    def add(state: State, part: Part) -> State:
        rows: dict[str, Rows] = dict(blocks.batch(part))
        counted = np.ones(part.table.num_rows, bool) if label is None else is_there(rows[label])
        counted[counted] = chosen.is_training(part, counted)
        if not counted.all():
            rows = {name: values[counted] for name, values in rows.items()}
        labels = None if label is None else rows[label]
        return together.add(state, {name: (values, None if name == label else labels) for name, values in rows.items()})

    return together.result(reduce_blocks(world, blocks.raw, add, together))


def _has_words(found: ColumnType) -> bool:
    """Whether texts are of several words, so that these are counted."""
    return found.type == "text" and found.spaces + found.count >= MANY_WORDS * max(1, found.count)


def _schema(
    table: Table,
    blocks: TableBlocks,
    facts: dict[str, ColumnFacts],
    label: str | None,
    task: Task | None,
    split: RowSplit | None,
    most_values: int,
) -> TableSchema:
    """What people review. Local."""
    assert blocks.types is not None
    first = next(iter(facts.values()))
    rows = first.count + first.missing
    if split is not None and split.column is not None and rows in (0, blocks.types.rows):
        lacks, way = ("training", "smaller") if not rows else ("evaluation", "larger")
        raise UserError(
            f"{split.column!r} leaves no rows for {lacks}; give a {way} --split, another --seed, or another column"
        )
    if label is not None:
        missing = blocks.types.all_rows - blocks.types.rows
        facts[label] = replace(facts[label], missing=missing)
    found = None if label is None else label_of(label, facts[label], task)
    columns = {}
    for name, each in facts.items():
        if found is not None and name == label:
            columns[name] = with_a_name(name, label_schema(found))
            continue
        odd = blocks.types.by_column[name]
        column = column_schema(name, each, found, _remark(blocks, odd), most_values)
        if split is not None and name == split.by and column.role not in ("id", "ignored"):
            column = left_out(column, SPLIT_BY)
        columns[name] = with_a_name(name, column).model_copy(update={"format": odd.format})
    return TableSchema(
        task=None if found is None else found.task,
        rows=rows,
        split=split,
        separator=_separator(blocks.files),
        missing_texts=table.missing_texts,
        columns=columns,
    )


def _separator(files: Sequence[TableFile]) -> str | None:
    """The separator of CSV files, where their names do not say it."""
    unusual = [file.separator for file in files if isinstance(file, CSVFile) and file.separator != file.usual_separator]
    return unusual[0] if unusual else None


def _remark(blocks: TableBlocks, found: ColumnType) -> str:
    """What is odd about the type of a column, with the place of the first such value."""
    if found.odd is None:
        return found.remark
    block, row, text = found.odd
    return f"{found.remark}; the first is {text!r} in {blocks.raw.place(block, row)}"

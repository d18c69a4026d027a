"""The schema of a table, found from its rows by all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpc_train.config.table import Table
from hpc_train.config.table_schema import TableSchema, Task
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.sampling.shuffle import Shuffle
from hpc_train.data.sources.split import rows_of_fraction
from hpc_train.data.tables.csv_file import CSVFile
from hpc_train.data.tables.rows import is_there
from hpc_train.data.tables.table_file import TableFile
from hpc_train.distributed.world import World
from hpc_train.mapreduce.reducer import Together
from hpc_train.mapreduce.reduction import reduce_blocks
from hpc_train.mapreduce.table_blocks import TableBlocks, table_blocks
from hpc_train.mapreduce.table_types import ColumnType, Part
from hpc_train.tabular.column_facts import ColumnFacts, FactsReducer
from hpc_train.tabular.roles import MANY_WORDS, MOST_CLASSES, column_schema, label_of, label_schema, with_a_name

State = dict[str, Any]
MOST_VALUES = 1000
"""Of a vocabulary, where nothing else is asked for."""


@dataclass(frozen=True)
class Split:
    """The rows that `hpc-train shard --split FRACTION --seed SEED` puts into the set for evaluation."""

    fraction: float
    seed: int

    def is_training(self, rows: int) -> np.ndarray:
        """Of each of `rows` rows whether it is for training: bool `[rows]`."""
        found = np.ones(rows, bool)
        found[Shuffle(rows, self.seed)(np.arange(rows_of_fraction(rows, self.fraction)))] = False
        return found


def infer_schema(
    world: World,
    table: Table,
    label: str | None = None,
    task: Task | None = None,
    split: Split | None = None,
    most_values: int = MOST_VALUES,
) -> TableSchema:
    """The schema of `table`. Collective; the same on any number of ranks.

    All rows are read twice: their texts decide the types of columns, and the rows for training all else. Rows without
    a label count nowhere.

    Args:
        label: The column that is to be predicted; None: there is none.
        task: What it is; None: its values say.
        split: Rows that are not for training; None: all are.
        most_values: Values that a vocabulary has at most.

    Raises:
        UserError: On all ranks: files that cannot be read, a label that is not there, or one that teaches nothing.
    """
    blocks = table_blocks(world, table, look=True, label=label)
    assert blocks.types is not None
    types = blocks.types
    training = world.each(lambda: None if split is None else split.is_training(types.rows))
    facts = _facts(world, blocks, label, training, most_values)
    return world.each(lambda: _schema(table, blocks, facts, label, task, training, most_values))


def _facts(
    world: World, blocks: TableBlocks, label: str | None, training: np.ndarray | None, most_values: int
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
    together, firsts = Together(reducers), blocks.types.firsts

    def add(state: State, part: Part) -> State:
        rows: dict[str, Rows] = dict(blocks.batch(part))
        if label is not None and not (there := is_there(rows[label])).all():
            rows = {name: values[there] for name, values in rows.items()}
        if training is not None:
            first = firsts[part.block, part.row]
            mask = training[first : first + len(next(iter(rows.values())))]
            rows = {name: values[mask] for name, values in rows.items()}
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
    training: np.ndarray | None,
    most_values: int,
) -> TableSchema:
    """What people review. Local."""
    assert blocks.types is not None
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
        columns[name] = with_a_name(name, column).model_copy(update={"format": odd.format})
    rows = blocks.types.rows if training is None else int(training.sum())
    return TableSchema(
        task=None if found is None else found.task,
        rows=rows,
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

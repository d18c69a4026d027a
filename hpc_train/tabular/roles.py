"""What a column is used as, by what was counted of it, with remarks for the person who reviews the schema. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from hpc_train.config.table_schema import ColumnSchema, ColumnSummary, Role, Task
from hpc_train.data.sources.recipe import check_name
from hpc_train.errors import UserError
from hpc_train.tabular.column_facts import MOST_DISTINCT, ColumnFacts

NAMES_OF_IDS = re.compile(r"(?i)(^|[_\s.-])(id|uuid|guid|key|index|nr|no|row)$|[a-z](ID|Id)$")
NEARLY_ALL = 0.9
"""Of the rows have a value of their own where a column is an id."""
FEW_ROWS = 20
"""Of fewer, nothing is judged by how many values differ."""
GAPS = 1.5
"""So many times as many whole numbers lie between the first and the last where they number rows."""
FEW_VALUES = 20
"""Whole numbers of so few different values may be codes."""
MANY_WORDS = 3.0
"""On average, where texts may be more than names of categories."""
MANY_TEXTS = 1000
"""Different ones, or each fifth row with one of its own, where texts of many words are no categories."""
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Label:
    """The label: its name, what was counted of it, and what is to be made of it."""

    name: str
    facts: ColumnFacts
    task: Task

    @property
    def has_classes(self) -> bool:
        return self.task in ("binary", "classes")


def label_of(name: str, facts: ColumnFacts, task: Task | None) -> Label:
    """The label, with its task; None: what its values say.

    Raises:
        UserError: There is nothing to learn of it, or the task is not for it.
    """
    kind, distinct = facts.type, facts.distinct
    where = f"the label {name!r}"
    if not facts.count:
        raise UserError(f"{where} has no values; choose another column with --label")
    if kind == "date":
        raise UserError(f"{where} is of type date; a label is a class or a number: choose another column with --label")
    if facts.type != "text" and facts.min is None:
        raise UserError(f"{where} has no finite values; choose another column with --label")
    is_one = distinct == 1 if distinct is not None else facts.min == facts.max
    if is_one:
        raise UserError(
            f"{where} is {_only(facts)} in all rows that have one: there is nothing to learn; give more rows"
        )
    if task in ("regression", "counts") and kind not in ("integer", "number"):
        raise UserError(f"--task {task}: {where} is of type {kind}; allowed: binary or classes")
    if task == "counts" and (facts.min or 0) < 0:
        raise UserError(f"--task counts: {where} has values below 0, such as {facts.min:g}; allowed: regression")
    if task == "counts" and kind == "number":
        raise UserError(f"--task counts: {where} has numbers with fractions; allowed: regression")
    if task in ("binary", "classes") and kind == "number":
        raise UserError(f"--task {task}: {where} has numbers with fractions; allowed: regression or counts")
    if task == "binary" and distinct != 2:
        raise UserError(f"--task binary: {where} has {distinct:,} different values; allowed: classes")
    if task is None:
        few = kind != "number" and distinct is not None and (kind != "integer" or distinct <= FEW_VALUES)
        task = ("binary" if distinct == 2 else "classes") if few else "regression"
    if task in ("binary", "classes") and (distinct or 0) > MOST_CLASSES:
        raise UserError(
            f"{where} has {distinct:,} different values; allowed: {MOST_CLASSES:,} classes at most: choose another "
            "column with --label, or --task regression for numbers"
        )
    return Label(name, facts, task)


def label_schema(label: Label) -> ColumnSchema:
    """The label as a column: its classes are in order, texts by the alphabet."""
    facts, remarks = label.facts, []
    in_order = sorted(zip(facts.values, facts.counts, strict=True)) if label.has_classes else []
    if facts.type == "integer" and label.task != "counts":
        what = "classes" if label.has_classes else "amounts"
        remarks.append(
            f"whole numbers with {_about(facts)} different values, taken for {what}; task may be "
            f"{'regression or counts' if label.has_classes else 'classes or counts'}, too"
        )
    if facts.missing:
        remarks.append(f"missing in {facts.missing:,} rows, which are refused; `missing: drop` leaves these rows out")
    found = _column(facts, "label", remarks, tuple(value for value, _ in in_order))
    assert found.statistics is not None
    statistics = found.statistics.model_copy(update={"counts": tuple(count for _, count in in_order)})
    return found.model_copy(update={"statistics": statistics})


def column_schema(name: str, facts: ColumnFacts, label: Label | None, remark: str, most_values: int) -> ColumnSchema:
    """What a column is used as.

    Args:
        remark: What is odd about its type; "": nothing is.
        most_values: Values and words that a vocabulary has at most.
    """
    remarks = [remark] if remark else []
    role = _role(name, facts, remarks)
    if role in ("id", "ignored"):
        return _column(facts, role, remarks)
    if label is not None and (leak := _leak(facts, label)):
        return _column(facts, "ignored", [*remarks, leak])
    if label is not None and _decides(facts, label):
        remarks.append(f"each of its values goes with one {label.name!r}: a leak?")
    if role == "text":
        words, known = facts.words[:most_values], facts.word_counts[:most_values]
        return _column(facts, role, remarks, words, facts.all_words - sum(known))
    is_code = facts.type == "integer" and 2 < (facts.distinct or 0) <= FEW_VALUES
    if is_code:
        remarks.append(
            f"whole numbers with {facts.distinct} different values; if they are codes, give role: categorical"
        )
    if role == "categorical" or is_code:
        values, counts = facts.values[:most_values], facts.counts[:most_values]
        if (facts.distinct or 0) > len(values):
            remarks.append(f"{_about(facts)} different values, of which the {len(values):,} most frequent are kept")
        return _column(facts, role, remarks, values, facts.count - sum(counts) if role == "categorical" else 0)
    return _column(facts, role, remarks)


def with_a_name(name: str, column: ColumnSchema) -> ColumnSchema:
    """The column; one that no dataset can be called as is left out.

    Raises:
        UserError: It is the label.
    """
    try:
        check_name(name)
    except UserError:
        way = "rename it in the table's files: a dataset's name is not empty and has no '/'"
        if column.role == "label":
            raise UserError(f"the label {name!r} cannot be a dataset; {way}") from None
        return left_out(column, f"left out; {way}")
    return column


def left_out(column: ColumnSchema, why: str) -> ColumnSchema:
    """The column, which models are not to see."""
    remarks = (*column.remarks, why)
    return column.model_copy(
        update={"role": "ignored", "missing": None, "vocabulary": (), "out_of_vocabulary": 0, "remarks": remarks}
    )


def _role(name: str, facts: ColumnFacts, remarks: list[str]) -> Role:
    if not facts.count:
        if not remarks:
            remarks.append("has no values")
        return "ignored"
    distinct = facts.distinct
    if facts.type != "text" and facts.min is None:
        remarks.append("has no finite values")
        return "ignored"
    if (distinct == 1 or (distinct is None and facts.min == facts.max)) and not facts.missing:
        remarks.append(f"is {_only(facts)} in all rows")
        return "ignored"
    differ = distinct is not None and distinct >= NEARLY_ALL * facts.count and facts.count >= FEW_ROWS
    if facts.type == "integer" and differ:
        span = 1 + (facts.max or 0.0) - (facts.min or 0.0)
        counted = span <= GAPS * facts.count  # rows may have been left out
        if counted or NAMES_OF_IDS.search(name):
            remarks.append("whole numbers that count the rows" if counted else "each row has a number of its own")
            return "id"
        remarks.append("nearly each row has a number of its own: an id? then give role: id")
    if facts.type == "date":
        return "date"
    if facts.type != "text":
        return "numeric"
    words = _mean_words(facts)
    many = distinct is not None and (distinct > MANY_TEXTS or distinct > 0.2 * facts.count)
    if words >= MANY_WORDS and many:
        return "text"
    if differ:
        remarks.append("nearly each row has a text of its own")
        return "id"
    return "categorical"


def _leak(facts: ColumnFacts, label: Label) -> str:
    """Why a column gives the label away; "" where it does not."""
    if facts.count < FEW_ROWS or (facts.distinct is not None and facts.distinct < 2):
        return ""
    if facts.equals_label and facts.equals_label == min(facts.count, label.facts.count):
        return f"equals the label {label.name!r}: left out, since it gives it away"
    distinct, classes = facts.distinct, label.facts.distinct
    is_known = facts.is_exact and facts.pairs is not None and classes is not None and distinct == classes > 1
    if is_known and facts.pairs == distinct:
        return f"its values and those of the label {label.name!r} are one to one: left out, since it gives it away"
    return ""


def _decides(facts: ColumnFacts, label: Label) -> bool:
    if not label.has_classes or not facts.is_exact or facts.pairs is None or not facts.distinct:
        return False
    return facts.pairs == facts.distinct > 1 and facts.distinct * 10 <= facts.count


def _only(facts: ColumnFacts) -> str:
    """The value of a column that has one."""
    return repr(facts.values[0]) if facts.values else f"{facts.min:g}"


def _mean_words(facts: ColumnFacts) -> float:
    return facts.all_words / max(1, facts.count)


def _about(facts: ColumnFacts) -> str:
    distinct = facts.distinct or 0
    return f"{distinct:,}" if facts.is_exact else f"about {float(f'{distinct:.2g}'):,.0f}"


def _column(
    facts: ColumnFacts, role: str, remarks: list[str], vocabulary: tuple[Any, ...] = (), unknown: int = 0
) -> ColumnSchema:
    is_number = facts.type != "text"
    summary = ColumnSummary(
        count=facts.count,
        missing=facts.missing,
        distinct=facts.distinct,
        **({"mean": facts.mean, "std": facts.std, "min": facts.min, "max": facts.max} if is_number else {}),
        quantiles=facts.deciles,
        mean_words=round(_mean_words(facts), 2) if facts.all_words else None,
    )
    return ColumnSchema(
        type=facts.type,
        role=cast(Role, role),
        vocabulary=vocabulary,
        out_of_vocabulary=unknown,
        statistics=summary,
        remarks=tuple(remarks),
    )


assert MOST_DISTINCT >= MOST_CLASSES

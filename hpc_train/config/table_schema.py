"""TableSchema: what the columns of a table are, and how each is used. The file schema.yaml.

label: income
columns:
  age:      {type: integer, role: numeric, missing: mean, statistics: {count: 40, missing: 2, mean: 38.6, std: 13.7, …}}
  city:     {type: text, role: categorical, missing: own, vocabulary: [Bern, Genf]}
  born:     {type: date, role: date, format: '%d.%m.%Y'}
  comment:  {type: text, role: text, vocabulary: [good, bad]}
  income:   {type: text, role: label, missing: refuse, vocabulary: ['<=50K', '>50K']}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hpc_train.config.diagnostics import validated
from hpc_train.config.row_split import RowSplit
from hpc_train.config.validation import specification, wrong_at
from hpc_train.config.yaml_loader import dump_yaml, read_yaml
from hpc_train.errors import UserError, did_you_mean

Type = Literal["integer", "number", "boolean", "text", "date"]
Role = Literal["numeric", "categorical", "text", "date", "id", "ignored", "label"]
Missing = Literal["mean", "median", "zero", "own", "refuse", "drop"]
Task = Literal["binary", "classes", "regression", "counts"]

MISSING_TEXTS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?")
"""What stands for a missing value in a CSV file, where a schema says nothing else."""
MAX_BYTES, MAX_VALUES = 32 << 20, 400_000
"""Of a schema file."""
ROLES_OF: Mapping[str, tuple[str, ...]] = {
    "integer": ("numeric", "categorical", "id", "ignored", "label"),
    "number": ("numeric", "categorical", "id", "ignored", "label"),
    "boolean": ("numeric", "categorical", "id", "ignored", "label"),
    "text": ("categorical", "text", "id", "ignored", "label"),
    "date": ("date", "id", "ignored"),
}
"""What a column of each type may be used as."""
MISSING_OF: Mapping[str, tuple[str, ...]] = {
    "numeric": ("mean", "median", "zero", "refuse"),
    "date": ("mean", "median", "zero", "refuse"),
    "categorical": ("own", "refuse"),
    "text": ("own", "refuse"),
    "label": ("refuse", "drop"),
    "id": (),
    "ignored": (),
}
"""How each role may treat a missing value; the first one is meant where a schema says nothing."""
ORDERED: tuple[Type, ...] = ("integer", "number", "date")
"""Types of columns that can say when a row was."""
USED: tuple[str, ...] = ("numeric", "categorical", "text", "date")
"""Roles of columns that a model takes."""


ABOUT = """\
# What the columns of a table are, and how each is used. Review it: a model sees what stands here.
# role: numeric, categorical, text, date, id or ignored (which are left out), label
# missing: mean, median or zero (numeric, date); own, a value of its own (categorical, text); refuse; drop (label)
"""
"""The first lines of a file."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnSummary(_Section):
    """`statistics:` of a column, over training rows.

    Attributes:
        count: Rows with a value. missing: Rows without one.
        distinct: Different values; None where they are too many to be counted.
        mean, std, min, max, quantiles: Of numbers; of dates in seconds since 1970-01-01, UTC. Quantiles are those at
            even steps of probability between 0 and 1, both left out: three are the quartiles. std divides by `count`.
        mean_words: Of texts: how many words there are in one.
        counts: Of a label with classes: how many rows have each, in the vocabulary's order; empty where not known.
    """

    count: int = Field(ge=0)
    missing: int = Field(default=0, ge=0)
    distinct: int | None = None
    mean: float | None = None
    std: float | None = Field(default=None, ge=0)
    min: float | None = None
    max: float | None = None
    quantiles: tuple[float, ...] = ()
    mean_words: float | None = None
    counts: tuple[Annotated[int, Field(ge=0)], ...] = ()


class ColumnSchema(_Section):
    """One of `columns:`.

    Attributes:
        type: What its values are. Dates are days, with or without a time of day.
        role: What it is used as: see ROLES_OF.
        missing: How a missing value is treated, see MISSING_OF: `mean`, `median`, `zero` stand in its place; `own`: it
            is a value of its own; `refuse`: it is an error; `drop`: its row is left out, of a label. None: as the
            role's first.
        format: Of a date that is written otherwise than 2026-01-31 or 2026-01-31 23:59:59, as strptime has it.
        vocabulary: Of a categorical column its values, of a text its words, the most frequent first; of a label with
            classes these, in their order. What is not in it is one value more, out of the vocabulary. A categorical
            column of booleans has both where none is given.
        out_of_vocabulary: How many rows (of a text: words) have a value that is not in it.
        statistics: None: not known.
        remarks: What was noticed; for people.
    """

    type: Type
    role: Role
    missing: Missing | None = None
    format: str | None = None
    vocabulary: tuple[bool | int | float | str, ...] = ()
    out_of_vocabulary: int = Field(default=0, ge=0)
    statistics: ColumnSummary | None = None
    remarks: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _with_both_values(cls, given: Any) -> Any:
        """A categorical column of booleans has both of them as its vocabulary, where none is given."""
        if isinstance(given, Mapping) and (given.get("type"), given.get("role")) == ("boolean", "categorical"):
            return {**given, "vocabulary": given.get("vocabulary") or (False, True)}
        return given

    @model_validator(mode="after")
    def _fits(self) -> ColumnSchema:
        if self.role not in ROLES_OF[self.type]:
            raise ValueError(
                f"role {self.role} is not for a column of type {self.type}; allowed: {', '.join(ROLES_OF[self.type])}"
            )
        allowed = MISSING_OF[self.role]
        if self.missing is not None and self.missing not in allowed:
            raise ValueError(
                f"missing {self.missing} is not for role {self.role}; allowed: {', '.join(allowed) or 'none'}"
            )
        if self.format is not None and self.type != "date":
            raise ValueError("format is for columns of type date")
        if len(set(self.vocabulary)) < len(self.vocabulary):
            raise ValueError("vocabulary has a value twice")
        kinds: dict[str, tuple[type, ...]] = {"integer": (int,), "boolean": (bool,), "number": (int, float)}
        kind = kinds.get(self.type, (str,))
        wrong = [v for v in self.vocabulary if not isinstance(v, kind) or (isinstance(v, bool) and kind != (bool,))]
        if wrong:
            raise ValueError(f"vocabulary has {wrong[0]!r}, which is no {self.type}; quote texts that look like others")
        return self

    @property
    def treatment(self) -> str:
        """How a missing value is treated; "" where the column is not used."""
        return self.missing or next(iter(MISSING_OF[self.role]), "")


@specification
class TableSchema(_Section):
    """A schema, as read_schema gives it.

    Attributes:
        task: What the label is: `binary`: two classes; `classes`; `regression`: a number; `counts`: a whole number
            from 0 on, as of events. None: there is no label.
        rows: Rows that the statistics are over.
        split: Which rows of the table are to evaluate with; the statistics are over the others. None: it is not split.
        separator: Of the columns of a CSV file. None: a tab in files that end in .tsv, else a comma.
        missing_texts: What stands for a missing value in a CSV file.
        columns: By name, in the table's order.

    Raises:
        UserError: With every mistake.
    """

    model_config = ConfigDict(title="the schema")

    task: Task | None = None
    rows: int | None = None
    split: RowSplit | None = None
    separator: str | None = None
    missing_texts: tuple[str, ...] = MISSING_TEXTS
    columns: dict[str, ColumnSchema] = Field(min_length=1)

    @field_validator("separator")
    @classmethod
    def _is_separator(cls, separator: str | None) -> str | None:
        return check_separator(separator)

    @model_validator(mode="after")
    def _has_a_label(self) -> TableSchema:
        labels = [name for name, column in self.columns.items() if column.role == "label"]
        if len(labels) > 1:
            raise wrong_at(("columns", labels[1]), "label", f"column {labels[0]!r} has role label, too; give it to one")
        if (self.task is None) != (not labels):
            place = ("columns", labels[0]) if labels else ("task",)
            raise wrong_at(place, self.task, "give `task` where a column has role label, and only there")
        if labels and (why_not := self._why_not(self.columns[labels[0]])):
            raise wrong_at(("columns", labels[0]), "label", why_not)
        if self.split is not None and (why_not := self._why_no_split(self.split)):
            raise wrong_at(("split",), self.split.column, why_not)
        return self

    def _why_no_split(self, split: RowSplit) -> str:
        """Why the rows cannot be split so; "" where they can."""
        if split.column is None:
            return ""
        if split.column not in self.columns:
            return f"there is no column {split.column!r}; {did_you_mean(split.column, self.columns)}name one"
        kind = self.columns[split.column].type
        if split.time is not None and (kind not in ORDERED or isinstance(split.after, str) != (kind == "date")):
            return f"`time` needs numbers or dates, and `after` one of these; column {split.time!r} is of type {kind}"
        return ""

    def _why_not(self, label: ColumnSchema) -> str:
        """Why `label` cannot be learnt as the task says; "" where it can."""
        classes, summary = label.vocabulary, label.statistics
        if self.task in ("binary", "classes") and len(classes) < 2:
            return f"task {self.task} needs a vocabulary of 2 classes at least"
        if self.task == "binary" and len(classes) != 2:
            return f"task binary needs 2 classes; it has {len(classes)}"
        if summary is not None and len(summary.counts) not in (0, len(classes)):
            return f"statistics.counts needs a number for each of {len(classes)} classes"
        if self.task in ("regression", "counts") and label.type not in ("integer", "number"):
            return f"task {self.task} needs numbers, not {label.type}"
        return ""

    @property
    def label(self) -> str | None:
        """The name of the column with role label."""
        return next((name for name, column in self.columns.items() if column.role == "label"), None)

    @property
    def classes(self) -> tuple[bool | int | float | str, ...]:
        """The classes of the label, in the order of their numbers; empty where it has none."""
        has_classes = self.task in ("binary", "classes") and self.label is not None
        return self.columns[self.label].vocabulary if has_classes and self.label is not None else ()

    @property
    def features(self) -> dict[str, ColumnSchema]:
        """The columns that a model takes, by name."""
        return {name: column for name, column in self.columns.items() if column.role in USED}

    def differing(self, other: TableSchema) -> list[str]:
        """What a model would see otherwise of `other`: the task, and columns by name."""
        ours, theirs = self._seen(), other._seen()
        found = [] if self.task == other.task else ["task"]
        return [*found, *(name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name))]

    def _seen(self) -> dict[str, ColumnSchema]:
        """Features and label without what people are to know of them."""
        chosen = {name: column for name, column in self.columns.items() if column.role in (*USED, "label")}
        return {name: column.model_copy(update={"remarks": ()}) for name, column in chosen.items()}

    def to_yaml(self) -> str:
        """The file: what is not given, or as it is where nothing is given, is left out."""
        value: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return ABOUT + dump_yaml(value, lists_in_line=True)


def check_separator(separator: str | None) -> str | None:
    """`separator`; ValueError where none of CSV files is so."""
    if separator is not None and (len(separator.encode()) != 1 or separator in '"\n\r'):
        raise ValueError("separator is one character of ASCII, and no quote")
    return separator


def read_schema(path: Path, follow: bool = True) -> TableSchema:
    """Reads and validates a schema file; without `follow`, none that a link leads to.

    Raises:
        UserError: With every mistake of the file, each on a line of its own.
    """
    document = read_yaml(path, MAX_BYTES, MAX_VALUES, follow)
    if not isinstance(document.value, dict):
        raise UserError(f"{path}:1: a schema is a mapping with the keys {', '.join(TableSchema.model_fields)}")
    return validated(document, TableSchema)

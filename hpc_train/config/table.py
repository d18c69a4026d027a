"""Table: which files are a table, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.config.table_schema import MISSING_TEXTS, TableSchema, check_separator, read_schema
from hpc_train.config.types import STRICT, Names, as_tuple
from hpc_train.config.validation import specification

Schema = Annotated[
    Any, BeforeValidator(lambda value: read_schema(Path(value)) if isinstance(value, str | Path) else value)
]


@specification
@dataclass(frozen=True, config=STRICT)
class Table:
    """Rows of CSV, Parquet or HDF5 files with the same columns, which follow each other.

    Args:
        files: Path or glob, or several: CSV (.csv, .tsv, also .gz; the first line names the columns), Parquet, or HDF5
            with datasets `[rows]`.
        columns: The columns to read; None: all.
        schema: The path of a schema.yaml, or what `read_schema` gives, for the types of the columns. None: those of
            CSV files are found by reading all rows once.
        separator: Between the columns of CSV files; None: what the schema says, a tab in .tsv files, else what the
            first line has of `,`, `;`, tab and `|`, in this order.
        missing: What stands for a missing value in CSV files; None: what the schema says, or an empty field, NA, N/A,
            n/a, NaN, nan, NULL, null, None and ?.

    Raises:
        UserError: With every value that is not allowed. That the files can be read is looked at when they are.
    """

    files: Names
    columns: Annotated[tuple[str, ...] | None, BeforeValidator(as_tuple)] = None
    schema: Schema = None
    separator: str | None = None
    missing: Annotated[tuple[str, ...] | None, BeforeValidator(as_tuple)] = None

    @field_validator("schema")
    @classmethod
    def _is_schema(cls, schema: Any) -> Any:
        if schema is not None and not isinstance(schema, TableSchema):
            raise ValueError("schema is the path of a schema.yaml, or a TableSchema")
        return schema

    @field_validator("separator")
    @classmethod
    def _is_separator(cls, separator: str | None) -> str | None:
        return check_separator(separator)

    @property
    def separator_in_files(self) -> str | None:
        """The separator, from here or from the schema; None: each file shows it."""
        return self.separator or (self.schema.separator if self.schema is not None else None)

    @property
    def missing_texts(self) -> tuple[str, ...]:
        """What stands for a missing value."""
        if self.missing is not None:
            return self.missing
        return MISSING_TEXTS if self.schema is None else self.schema.missing_texts

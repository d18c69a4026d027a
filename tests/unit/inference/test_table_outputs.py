"""What predictions of a table's rows look like, and how they are written."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.inference.table_outputs import output_columns, output_names
from hpc_train.inference.table_writer import CSVWriter, ParquetWriter, TableWriter, writer_for


def schema(task: str, kind: str, classes: list[Any]) -> TableSchema:
    label = {"type": kind, "role": "label", "vocabulary": classes}
    return TableSchema.model_validate({"task": task, "columns": {"y": label}})


def columns(found: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: column.to_pylist() for name, column in found.items()}


def test_of_two_classes_the_second_ones_probability_is_a_column() -> None:
    asked = schema("binary", "text", ["<=50K", ">50K"])
    found = columns(output_columns(np.array([[0.25], [0.75], [np.nan]], np.float32), asked))
    assert found == {"prediction": ["<=50K", ">50K", None], "probability_>50K": [0.25, 0.75, None]}
    assert output_names(asked) == list(found)
    booleans = schema("binary", "boolean", [False, True])
    assert columns(output_columns(np.array([[1.0]], np.float32), booleans)) == {
        "prediction": [True],
        "probability_true": [1.0],
    }


def test_of_more_classes_each_has_a_column_unless_there_are_many() -> None:
    asked = schema("classes", "integer", [7, 3, 5])
    values = np.array([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [np.nan, 0.5, 0.5]], np.float32)
    found = columns(output_columns(values, asked))
    assert found["prediction"] == [7, 5, None]
    assert [found[f"probability_{k}"] for k in (7, 3, 5)] == [[0.5, 0.125, None], [0.25, 0.125, 0.5], [0.25, 0.75, 0.5]]
    many = schema("classes", "integer", list(range(30)))
    found = columns(output_columns(np.eye(30, dtype=np.float32)[[4, 29]], many))
    assert found == {"prediction": [4, 29], "probability": [1.0, 1.0]}
    assert output_names(many) == list(found)


def test_of_numbers_the_number_is() -> None:
    asked = TableSchema.model_validate({"task": "regression", "columns": {"y": {"type": "number", "role": "label"}}})
    found = columns(output_columns(np.array([[1.5], [np.nan]], np.float32), asked))
    assert found == {"prediction": [1.5, None]}


def written(kind: type[TableWriter], *tables: Any) -> bytes:
    file = io.BytesIO()
    writer = kind(file, tables[0].schema)
    for table in tables:
        writer.write(table)
    writer.close()
    return file.getvalue()


def test_csv_has_quotes_where_they_are_needed() -> None:
    table = pa.table({
        'the "näme"': ['a "b"', "x,y", "line\nbreak", "\r", " ", None, "=1+1"],
        "p": pa.array([0.1, 1 / 3, 1e-20, 16777216.0, np.inf, None, 1.0], pa.float32()),
        "ok": [True, False, None, True, True, True, True],
    })  # fmt: skip
    text = written(CSVWriter, table.slice(0, 2), table.slice(2)).decode()
    assert text.splitlines(keepends=True)[:3] == [
        '"the ""näme""",p,ok\n',
        '"a ""b""",0.1,true\n',
        '"x,y",0.33333334,false\n',
    ]
    assert text.endswith('"line\nbreak",1e-20,\n"\r",16777216,true\n ,inf,true\n,,true\n=1+1,1,true\n')
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert [row[0] for row in rows[1:]] == [name or "" for name in table.column(0).to_pylist()]
    assert [np.float32(row[1]) for row in rows[1:] if row[1]] == table.column("p").drop_null().to_pylist()


def test_a_line_of_csv_is_never_empty() -> None:
    assert written(CSVWriter, pa.table({"prediction": pa.array([1.5, None], pa.float32())})) == (
        b'prediction\n1.5\n""\n'
    )


def test_columns_of_all_types_become_texts() -> None:
    table = pa.table({
        "kind": pa.array(["a", None]).dictionary_encode(),
        "price": [decimal.Decimal("1.50"), None],
        "day": [datetime.date(2026, 1, 31), None],
        "none": pa.nulls(2),
    })  # fmt: skip
    assert written(CSVWriter, table) == b"kind,price,day,none\na,1.50,2026-01-31,\n,,,\n"


def test_row_groups_of_parquet_gather_tables() -> None:
    table = pa.table({"id": np.arange(1000), "text": ["a"] * 1000})
    content = written(ParquetWriter, *[table] * 20)
    file = pyarrow.parquet.ParquetFile(io.BytesIO(content))
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [16_000, 4000]
    assert file.read() == pa.concat_tables([table] * 20)
    big = pa.table({"id": np.arange(1 << 16)})
    assert pyarrow.parquet.ParquetFile(io.BytesIO(written(ParquetWriter, big, big))).num_row_groups == 2


def test_parquet_of_files_with_other_types_is_refused() -> None:
    table = pa.table({"id": [1, 2]})
    file = io.BytesIO()
    writer = ParquetWriter(file, table.schema)
    writer.write(table)
    with pytest.raises(UserError, match="--keep id: it is int64 in one file and string in another"):
        writer.write(pa.table({"id": ["a"]}))
    writer.close()
    assert pyarrow.parquet.read_table(io.BytesIO(file.getvalue())) == table


def test_the_kind_of_file_is_its_names() -> None:
    assert writer_for(Path("a.CSV")) is CSVWriter
    with pytest.raises(UserError, match=r"--out a\.json: predictions of a table are written as \.csv or \.parquet"):
        writer_for(Path("a.json"))

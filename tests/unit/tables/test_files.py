"""Files of tables: whatever blocks a file is cut into, its rows are those that it has; and what is refused."""

from __future__ import annotations

import csv
import datetime
import gzip
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hpc_train.config.table import Table
from hpc_train.data import write_shards
from hpc_train.data.tables import csv_file
from hpc_train.data.tables.files import files_from_json, files_to_json, open_files
from hpc_train.data.tables.part import whole
from hpc_train.data.tables.table_file import TableFile
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.mapreduce.table_blocks import table_blocks
from tests.support import examples


def opened(path: Path, **more: object) -> TableFile:
    [file] = open_files(Table(files=str(path), **more))
    [file] = files_from_json(files_to_json([whole(file)]))
    return file


def rows_of(file: TableFile) -> list[list[object]]:
    wanted = dict.fromkeys(file.types)
    tables = [table for block in range(file.blocks) for table in file.read(block, wanted)]
    return [list(row.values()) for table in tables for row in table.to_pylist()]


@pytest.mark.random
def test_csv_rows_in_any_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    for number in range(examples(60)):
        monkeypatch.setattr(csv_file, "PIECE_BYTES", chance.choice([8, 30, 100, 1000]))
        letters = ["a", '"', ",", ";", "\n", "ü", "", " b", "12", "NA"]
        rows = [
            ["".join(chance.choices(letters, k=chance.randrange(5))) for _ in range(3)]
            for _ in range(chance.randrange(1, 40))
        ]
        path = tmp_path / f"{number}.csv"
        with open(path, "w", newline="", encoding=chance.choice(["utf-8", "utf-8-sig"])) as file:
            end = chance.choice(["\n", "\r\n"])
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=end)
            writer.writerows([["x", "y", "z"], *rows])
        wanted = [[None if cell.strip() in ("", "NA") else cell.strip() for cell in row] for row in rows]
        assert rows_of(opened(path)) == wanted
        zipped = path.with_suffix(".csv.gz")
        zipped.write_bytes(gzip.compress(path.read_bytes()))
        assert rows_of(opened(zipped)) == wanted
        reader = csv.reader(path.read_text("utf-8-sig").splitlines(keepends=True))
        begins = [reader.line_num + 1 for _ in reader][:-1]
        for table in (opened(path), opened(zipped)):
            counts = [sum(part.num_rows for part in table.read(k, {"x": None})) for k in range(table.blocks)]
            places = [table.place(block, row) for block, count in enumerate(counts) for row in range(count)]
            assert places == [f"line {begin}" for begin in begins]


def test_separators_missing_texts_and_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;y\n1;?\n-;2\n")
    assert rows_of(opened(tmp_path / "a.csv")) == [["1", None], ["-", "2"]]
    assert rows_of(opened(tmp_path / "a.csv", missing=("-",))) == [["1", "?"], [None, "2"]]
    (tmp_path / "b.tsv").write_text("x\ty,z\n1\t2\n")
    assert opened(tmp_path / "b.tsv").types == {"x": None, "y,z": None}
    (tmp_path / "c.csv").write_text("x:y\n1:2\n")
    assert rows_of(opened(tmp_path / "c.csv", separator=":")) == [["1", "2"]]


def test_parquet_and_hdf5(tmp_path: Path) -> None:
    table = pa.table({"n": [1, None, 3], "t": ["ä", None, "c"], "b": [True, False, None]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    file = opened(tmp_path / "a.parquet")
    assert (file.blocks, dict(file.types)) == (2, {"n": "integer", "t": "text", "b": "boolean"})
    assert rows_of(file) == [[1, "ä", True], [None, None, False], [3, "c", None]]
    assert file.place(1, 0) == "row 3"
    columns = {"n": np.arange(5000), "t": np.array(["ä", ""] * 2500, object), "image": np.zeros((5000, 2))}
    write_shards(str(tmp_path / "s"), columns, shards=1)
    file = opened(tmp_path / "s-00000.h5")
    assert dict(file.types) == {"n": "integer", "t": "text"} and file.blocks > 1
    assert rows_of(file) == [[k, "" if k % 2 else "ä"] for k in range(5000)]


BAD = {
    "ragged": (b"a,b\n1,2\n3\n", "line 3 has 1 field, but there are 2 columns"),
    "ragged later": (b'a,b\n"1\n2",2\n3,4,5\n', "line 4 has 3 fields, but there are 2 columns"),
    "open quote": (b'a,b\n1,2\n3,"x\n', "the record that begins in line 3 has a quote that is not closed"),
    "stray quote": (b'a,b\n1,2\n5" pipe,2\n', "line 3 has a quote within a field that does not begin with one"),
    "twice": (b"a,b,a\n1,2,3\n", "columns 1 and 3 are both called 'a'"),
    "no name": (b"a,,b\n1,2,3\n", "column 2 has no name"),
    "latin": (b"a,b\n1,x\n2,\xe9\n", "line 3: column 'b' is not text in UTF-8; convert the file"),
    "latin header": (b"a,\xe9\n1,x\n", "its first line is not text in UTF-8"),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), "is text in UTF-16"),
    "empty": (b"", "is empty"),
    "blank": (b"\n\n", "is empty"),
    "numbers": (b"1,2\n3,4\n", "the first line holds numbers and no column names"),
    "damaged": (gzip.compress(b"a,b\n1,2\n" * 1000)[:40], "cannot be read"),
}


ZIPPED = ("open quote", "stray quote", "ragged later", "latin")


@pytest.mark.parametrize("kind", [*BAD, *(f"{kind}, zipped" for kind in ZIPPED)])
def test_bad_csv(kind: str, tmp_path: Path) -> None:
    kind, _, zipped = kind.partition(", ")
    content, text = BAD[kind]
    path = tmp_path / ("x.csv.gz" if zipped or kind == "damaged" else "x.csv")
    path.write_bytes(gzip.compress(content) if zipped else content)
    text = "from line 3 on there is a quote that is not closed" if zipped and kind == "open quote" else text
    with pytest.raises(UserError) as error:
        rows_of(opened(path))
    assert str(error.value).startswith(f"{path}: ") and text in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    for name, text in (
        ("a", "x,y\n1,2\n"),
        ("b", "y,x\n1,2\n"),
        ("c", "x\n1\n"),
        ("d", "x;y\n1;2\n"),
        ("e", "x,y,z\n1,2,3\n"),
    ):
        (tmp_path / f"{name}.csv").write_text(text)
    files = {name: str(tmp_path / f"{name}.csv") for name in "abcde"}
    assert len(open_files(Table(files=(files["a"], files["b"])))) == 2
    for names, text in (
        ("ac", "has no column y, unlike"),
        ("ae", "has a column z, too, unlike"),
        ("ad", "columns are separated by ';', those of"),
        ("aa", "named twice"),
    ):
        with pytest.raises(UserError, match=text):
            open_files(Table(files=tuple(files[name] for name in names)))
    with pytest.raises(UserError, match=r"no such file"):
        open_files(Table(files=str(tmp_path / "*.parquet")))
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UserError, match="cannot tell what this is; a table is CSV"):
        open_files(Table(files=str(tmp_path / "x.json")))
    pyarrow.parquet.write_table(pa.table({"l": [[1]], "none": [None]}), tmp_path / "l.parquet")
    with pytest.raises(UserError, match=r"column 'l' is list<.*>; a table has numbers"):
        table_blocks(World.alone(), Table(files=str(tmp_path / "l.parquet")))


def test_columns_that_no_table_has_may_be_left_out(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"l": [[1]], "n": [2], "none": [None]}), tmp_path / "l.parquet")
    blocks = table_blocks(World.alone(), Table(files=str(tmp_path / "l.parquet"), columns=("n", "none")))
    assert {name: column.type for name, column in blocks.columns.items()} == {"n": "integer", "none": "text"}


def test_types_are_those_of_all_files_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "i.csv").write_text("a,b,d\n1,yes,2024-01-02\n")
    days = pa.array([datetime.date(2024, 1, 1)])
    pyarrow.parquet.write_table(pa.table({"a": [1], "b": [True], "d": days}), tmp_path / "i.parquet")
    pyarrow.parquet.write_table(pa.table({"a": [1.5], "b": [True], "d": days}), tmp_path / "f.parquet")
    for names, kind in ((["i.parquet", "f.parquet"], "number"), (["i.csv", "i.parquet"], "integer")):
        for files in (names, names[::-1]):
            blocks = table_blocks(World.alone(), Table(files=tuple(str(tmp_path / name) for name in files)))
            assert [column.type for column in blocks.columns.values()] == [kind, "boolean", "date"]


def test_whole_numbers_that_floats_do_not_hold_are_texts_whatever_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x\n{2**60 + 1}\n")
    pyarrow.parquet.write_table(pa.table({"x": [2**60 + 1]}), tmp_path / "a.parquet")
    write_shards(str(tmp_path / "a"), {"x": np.array([2**60 + 1])}, shards=1)
    for name in ("a.csv", "a.parquet", "a-00000.h5"):
        blocks = table_blocks(World.alone(), Table(files=str(tmp_path / name)))
        assert blocks.columns["x"].type == "text", name
        with blocks.reader() as read:
            [batch] = read(0)
        assert batch["x"].texts().tolist() == [str(2**60 + 1).encode()]


def test_an_empty_line_of_one_column_is_a_missing_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n\n3\n\n")
    assert rows_of(opened(tmp_path / "a.csv")) == [["1"], [None], ["3"], [None]]
    assert opened(tmp_path / "a.csv").place(0, 2) == "line 4"


def test_names_may_be_numbers_and_separators_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("country,2019,2020\nCH,1,2\n")
    assert list(opened(tmp_path / "a.csv").types) == ["country", "2019", "2020"]
    (tmp_path / "b.csv").write_text('"a,b";c\n1;2\n')
    assert list(opened(tmp_path / "b.csv").types) == ["a,b", "c"]


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    file = opened(path)
    path.write_text("x\n1\n2\n")
    with pytest.raises(UserError, match="has changed while it was read"):
        rows_of(file)


def test_a_huge_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(csv_file, "PIECE_BYTES", 100)
    for name in ("a.csv", "a.csv.gz"):
        content = b'x\n1\n"' + b"y" * 2000 + b'"\n2\n'
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        with pytest.raises(UserError, match="a record of more than"):
            rows_of(opened(tmp_path / name))

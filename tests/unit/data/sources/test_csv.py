from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.data.writing.convert import Options, convert
from tests.support import examples
from tests.unit.data.sources.test_sources import IMAGES, LABELS, refusal, write


@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(st.integers(-(2**53), 2**53), st.floats(width=64)), min_size=1, max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_csv_numbers_are_kept_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, float]], zipped: bool, windows: bool
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    end = "\r\n" if windows else "\n"
    text = end.join(["whole,real", *(f"{a},{b!r}" for a, b in rows)]).encode()
    (folder / "s.csv.gz").write_bytes(gzip.compress(text) if zipped else text)
    found = write(folder, "s.csv.gz", shards=1, dtype=["real=float64"])
    assert found["whole"].dtype == np.int64
    assert found["whole"].tolist() == [a for a, _ in rows]
    np.testing.assert_array_equal(found["real"], [b for _, b in rows])


def test_csv_tables(tmp_path: Path) -> None:
    header = ",".join(["label", *(f"p{i}" for i in range(12)), "name", "late"])
    lines = [",".join(map(str, [LABELS[i], *IMAGES[i].ravel(), '"a, b"', i])) for i in range(60)]
    (tmp_path / "a.csv").write_text("\ufeff" + "\n".join([header, *lines[:30]]) + "\n\n")
    (tmp_path / "b.csv").write_text("\n".join([header, *lines[30:59], lines[59] + ".5"]))
    options = {"columns": "image,label,late", "stack": ["image=p0..p11"], "dtype": ["image=uint8[4,3]"]}
    found = write(tmp_path, "*.csv", **options)
    np.testing.assert_array_equal(found["image"], IMAGES)
    assert found["image"].dtype == np.uint8
    assert (found["label"].dtype, found["label"].tolist()) == (np.int64, LABELS.tolist())
    assert (found["late"].dtype, found["late"].tolist()) == (np.float64, [*range(59), 59.5])
    assert refusal_of_text(tmp_path).startswith(
        "a.csv: cannot write 'name' (line 2 has the text 'a, b'). --columns label,"
        + ",".join(f"p{i}" for i in range(12))
        + ",late leaves that out; --dtype name=text writes text as it is"
    )


def refusal_of_text(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        convert(folder / "o" / "t", [str(folder / "a.csv")], Options())
    return str(error.value).replace(f"{folder}/", "")


def test_a_column_that_turns_out_not_to_be_whole_is_float_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc_train.data.sources.csv.BLOCK_BYTES", 1000)
    (tmp_path / "s.csv").write_text("x,y\n" + "".join(f"{i},{i}\n" for i in range(20_000)) + "0.5,7\n")
    found = write(tmp_path, "s.csv")
    assert (found["x"].dtype, found["y"].dtype) == (np.float64, np.int64)
    assert found["x"][-2:].tolist() == [19_999, 0.5]
    assert (found["x"][:-1] == found["y"][:-1]).all()
    (tmp_path / "out").rename(tmp_path / "done")
    (tmp_path / "s.csv").write_text("x\n" + f"{2**53 + 1}\n" + "1\n" * 40_000 + "0.5\n")
    assert "beyond 2**53, which float64 rounds; give --dtype x=float64" in refusal(tmp_path, "s.csv")


def test_csv_without_a_header_and_with_tabs(tmp_path: Path) -> None:
    (tmp_path / "s.tsv").write_text("1\t2.5\n3\t4\n")
    assert "the first line holds numbers and no column names; give --no-header" in refusal(tmp_path, "s.tsv")
    found = write(tmp_path, "s.tsv", header=False, shards=1, dtype=["float32"])
    assert (found["c0"].tolist(), found["c1"].tolist(), found["c1"].dtype) == ([1, 3], [2.5, 4], np.float32)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "s.csv: is empty"),
        ("a,b\n", "cannot write 0 rows to 3 shards"),
        ("a,a\n1,2\n", "two columns are named 'a'"),
        (",a\n0,2\n", "column '': a dataset name is not empty"),
        ("a,b\n1,2\n3\n", "line 3 has 1 values, but there are 2 columns"),
        ("a,b\n1,2\n3,\n", "cannot write 'b' (line 3 has no value). --columns a leaves that out"),
        ("a,b\n1,2\n3,NA\n", "cannot write 'b' (line 3 has the text 'NA')"),
        ("a,b\n" + "1,2\n" * 20_000 + "1,x\n", "line 20002: column 'b' has the text 'x', not a number"),
        ("a,b\n" + "1,2\n" * 20_000 + "\n1,\n", "line 20003: column 'b' has no value, not a number"),
        ("a,b\n" + "1,2.5\n" * 20_000 + "0x10,1.5\n", "line 20002: column 'a' has the text '0x10'"),
        ("a,b\n" + "1,2\n" * 20_000 + "1,2,3\n", "line 20002 has 3 values, but there are 2 columns"),
        ("\na,b\n1,2\n", "its first line is empty"),
        ('a,"b\n1,2\n', "its first line cannot be read; is there a quote too many?"),
        ("a,b\n" + "1,2\n" * 20_000 + '1,"2\n3,4\n', "s.csv: line"),
        ("a,b\n" + "1,2\n" * 20_000 + "\n\r\n1,2\n3,0X10\n", "line 20005: column 'b' has the text '0X10'"),
        ("a,b\n" + "1,2\n" * 20_000 + '1,"Größe, x"\n', "line 20002: column 'b' has the text 'Größe, x'"),
        ("a,b\n" + "1,2\n" * 20_000 + "1,z\ny,2\n", "line 20002: column 'b' has the text 'z'"),
        ("a,b\n" + "1,2\n" * 20_000 + "1,2.5\n,2\n", "line 20003: column 'a' has no value"),
        ("a,b\n" + "1,2\n" * 20_000 + "1\n", "line 20002 has 1 values, but there are 2 columns"),
        ("a\n" + "1\n" * 40_000 + "\n-1_0\n", "line 40003: column 'a' has the text '-1_0'"),
        ("a,b\n1,2\n3,98765432109876543210\n", "line 3: column 'b' has 98765432109876543210, which does not fit int64"),
    ],
)
def test_csv_that_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    assert said in refusal(tmp_path, "s.csv")


@pytest.mark.parametrize("late", [False, True])
def test_numbers_are_those_that_people_write(tmp_path: Path, late: bool) -> None:
    """In the first lines, and far below them, where their kind is known."""
    whole = [" 3", "+4", "-05", '"6"', "\t7 "]
    real = [" .5", "+6.", "-1E+3", "NaN", '"-Infinity"']
    rows = ["1,2.5,box"] * (20_000 if late else 0) + [f"{a},{b},x" for a, b in zip(whole, real, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(["a,b,kind", *rows]))

    found = write(tmp_path, "s.csv", shards=1, columns="a,b")

    assert (found["a"].dtype, found["a"][-5:].tolist()) == (np.int64, [3, 4, -5, 6, 7])
    np.testing.assert_array_equal(found["b"][-5:], [0.5, 6, -1000, np.nan, -np.inf])
    assert len(found["a"]) == len(rows)


def test_whole_numbers_beyond_int64(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(f"a,b\n{2**64 - 1},+{2**63}\n")
    assert f"column 'a' has {2**64 - 1}, which does not fit int64; give --dtype a=uint64" in refusal(tmp_path, "s.csv")
    found = write(tmp_path, "s.csv", shards=1, dtype=["a=uint64", "b=float64"])
    assert (found["a"].tolist(), found["b"].tolist()) == ([2**64 - 1], [2.0**63])


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpc_train.data.sources.csv.MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "s.csv").write_text("a,b\n1," + "2" * (3 << 20))
    assert "s.csv: has a line of more than 1 MiB; is it CSV?" in refusal(tmp_path, "s.csv")


def test_stacking_keeps_the_order_of_the_first_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,z\n1,2,3\n")
    (tmp_path / "b.csv").write_text("z,y,x\n30,20,10\n")
    assert write(tmp_path, "a.csv", "b.csv", stack=["v=x..z"], shards=1)["v"].tolist() == [[1, 2, 3], [10, 20, 30]]
    found = write(tmp_path, "a.csv", stack=["v=z,x"], shards=1, dtype=["v=float32"])
    assert (found["v"].tolist(), found["y"].tolist()) == ([[3, 1]], [2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "5.1,3.5,0.2,setosa\n4.9,3,0.2,setosa\n",
            "has numbers among its names, such as '5.1', so it may be a row; give",
        ),
        (
            "cat,1,2\ndog,3,4\n",
            "such as '1', so it may be a row; give --no-header if it is a row, or --header if these",
        ),
        ("a,2,3\n1,2,3\n", "numbers among its names, such as '2'"),
        ('a,0,1\n"x\n', "numbers among its names, such as '0'"),
        (
            "0,1,2\n5,6,7\n",
            "the first line holds numbers and no column names; give --no-header if it is a row, or --hea",
        ),
        ("a,b,a\n1,2,3\n", "two columns are named 'a'; give --no-header if the first line is a row"),
    ],
)
def test_a_first_line_that_looks_like_a_row_is_noticed(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    assert said in refusal(tmp_path, "s.csv")


def test_names_that_count_the_columns_are_names_and_others_with_consent(tmp_path: Path) -> None:
    """As many programs write them (label,0,1,2 …); which 2.5 is not, unless the user says so."""
    (tmp_path / "s.csv").write_text("label,0,1\n7,8,9\n")
    assert {name: array.tolist() for name, array in write(tmp_path, "s.csv", shards=1).items()} == {
        **{"label": [7], "0": [8]},
        "1": [9],
    }
    (tmp_path / "s.csv").write_text("1.5,2.5\n7,8\n")
    assert write(tmp_path, "s.csv", shards=1, header=True, columns="x=2.5")["x"].tolist() == [8]
    assert write(tmp_path, "s.csv", shards=1, header=False)["c0"].tolist() == [1.5, 7]

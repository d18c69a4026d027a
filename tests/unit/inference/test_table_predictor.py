"""Tables through exports: what is kept, which exports are taken, and what a value that is missing means."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from hpc_train.cli.export import predict
from hpc_train.data.writing.prediction_files import InputSpec
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.inference.loaded_export import LoadedExport
from hpc_train.inference.table_predictor import TableRequest, predict_table

COLUMNS: dict[str, Any] = {
    "größe/cm": {"type": "number", "role": "numeric", "missing": "refuse"},
    "city": {"type": "text", "role": "categorical", "vocabulary": ["Bern"]},
    "row": {"type": "integer", "role": "id"},
    "price": {"type": "number", "role": "label"},
}
NUMBERS, TEXTS = InputSpec("float64", ()), InputSpec("object", ())


class Export:
    """An export of a model that gives the size, or what `outputs` makes of the inputs, with the schema of COLUMNS."""

    def __init__(self, path: Path, outputs: Callable[[Any], Any] | None = None, **changes: Any) -> None:
        self.path, self.batches = path, list[int]()
        self.inputs = {"gr__e_cm": NUMBERS, "city": TEXTS} | changes.pop("inputs", {})
        self.datasets = {"gr__e_cm": "größe/cm", "city": "city"} | changes.pop("datasets", {})
        self._outputs = outputs or (lambda arrays: {"prediction": arrays["gr__e_cm"][:, None].astype(np.float32)})
        (path / "assets").mkdir(parents=True)
        schema = {"task": "regression", "columns": COLUMNS} | changes
        (path / "assets" / "schema.yaml").write_text(yaml.safe_dump(schema, allow_unicode=True, sort_keys=False))

    def predict(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.batches.append(len(arrays["city"]))
        assert all(isinstance(text, bytes) for text in arrays["city"])
        return cast(dict[str, np.ndarray], self._outputs(arrays))


def rows_of(export: Export, text: str, **options: Any) -> list[list[str]]:
    """What is predicted of a table, line by line."""
    (export.path / "new.csv").write_text(text, "utf-8")
    request = TableRequest((str(export.path / "new.csv"),), export.path / "p.csv", **options)
    predict_table(World.alone(), cast(LoadedExport, export), request, print)
    with open(export.path / "p.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_rows_come_in_batches_with_the_columns_that_are_kept(tmp_path: Path) -> None:
    export = Export(tmp_path / "export")
    text = "price,row,größe/cm,city\n" + "".join(f"none,{k},{k / 8},\n" for k in range(10))
    assert rows_of(export, text, batch_size=4) == [
        ["row", "prediction"],
        *([str(k), f"{k / 8:g}"] for k in range(10)),
    ]
    assert export.batches == [4, 4, 2]
    kept = rows_of(export, text, keep=("price", "größe/cm"), overwrite=True)
    assert kept[:2] == [["price", "größe/cm", "prediction"], ["none", "0.0", "0"]]
    assert rows_of(export, text, keep=(), overwrite=True)[0] == ["prediction"]
    assert sorted(path.name for path in export.path.iterdir()) == ["assets", "new.csv", "p.csv"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "größe/cm,city\n1,Bern\n,Bern\n",
            "new.csv: line 3: column 'größe/cm' has no value; mend it, or leave its row",
        ),
        ("groesse,city\n1,Bern\n", "new.csv: has no column 'größe/cm', which the schema uses"),
        ("größe/cm,city\n\x1b[1m,Bern\n", r"line 2: column 'größe/cm' has '\x1b[1m', not a number"),
        ("größe/cm,city\n", "new.csv: has no rows; give a table with some"),
        ("", "new.csv: is empty"),
    ],
)
def test_what_the_schema_refuses_is_said_and_nothing_written(text: str, expected: str, tmp_path: Path) -> None:
    export = Export(tmp_path / "export")
    with pytest.raises(UserError) as error:
        rows_of(export, text)
    assert expected in str(error.value)
    assert sorted(path.name for path in export.path.iterdir()) == ["assets", "new.csv"]


GOOD = "größe/cm,city\n1,Bern\n2,Zug\n"


def test_only_exports_that_take_rows_of_the_schema_are_taken(tmp_path: Path) -> None:
    def refused(name: str, expected: str, outputs: Callable[[Any], Any] | None = None, **changes: Any) -> None:
        export = Export(tmp_path / name, outputs, **changes)
        with pytest.raises(UserError) as error:
            rows_of(export, GOOD)
        assert expected in str(error.value)
        assert str(error.value).endswith("predict shards, with --shards")
        assert not (export.path / "p.csv").exists()

    refused("a", "has no feature 'town', which the export takes", datasets={"city": "town"})
    refused(
        "b", "takes 'größe/cm' as float32 [rows], not float64 [rows]", inputs={"gr__e_cm": InputSpec("float32", ())}
    )
    refused("c", "takes 'city' as float64 [rows], not texts [rows] as tables", inputs={"city": NUMBERS})
    refused("d", "gives x [2, 3] of 2 rows, a model of this schema [2, 1] alone", lambda _: {"x": np.zeros((2, 3))})
    refused("e", "gives x [2, 1], y [2, 1] of 2 rows", lambda _: dict.fromkeys("xy", np.zeros((2, 1))))
    export = Export(tmp_path / "own")
    (export.path / "assets" / "schema.yaml").unlink()
    with pytest.raises(UserError, match="own: is no export of a built-in model of a table; predict shards, with --sh"):
        rows_of(export, GOOD)


def test_of_an_ensemble_the_mean_is_the_prediction(tmp_path: Path) -> None:
    def outputs(arrays: Any) -> Any:
        members = np.stack([arrays["gr__e_cm"][:, None], 3 * arrays["gr__e_cm"][:, None]], axis=1)
        return {"members": members, "mean": members.mean(1), "spread": members.std(1)}

    assert rows_of(Export(tmp_path / "export", outputs), GOOD) == [["prediction"], ["2"], ["4"]]


def test_numbers_that_are_none_are_left_empty(tmp_path: Path) -> None:
    export = Export(tmp_path / "export", lambda arrays: {"x": np.full((len(arrays["city"]), 1), np.nan)})
    assert rows_of(export, GOOD) == [["prediction"], [""], [""]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give --shards or --table, one of them"),
        (["--shards", "a.h5", "--table", "a.csv"], "give --shards or --table, one of them"),
        (["--table", "a.csv", "--pad", "x=0"], "--pad: is for --shards"),
        (["--shards", "a.h5", "--keep", "a"], "--keep: is for --table"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], expected: str) -> None:
    app = typer.Typer()
    app.command()(predict)
    ended = CliRunner().invoke(app, ["export", "--out", "p.csv", *words])
    assert ended.exit_code == 2
    assert expected in ended.output

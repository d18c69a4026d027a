"""Exports of trees as they are loaded, whole and damaged; and XGBoost where it is not installed."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hpc_train.boosting.exports import TreeExporters
from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.exporters import FinalExporter
from hpc_train.config.table_schema import TableSchema, read_schema
from hpc_train.errors import UserError
from hpc_train.inference.loaded_export import load_export
from hpc_train.trees.booster import MODEL_FILE, matrix_of, parameters, xgboost
from hpc_train.trees.columns import TreeColumns, digest_of

LABELS: dict[str, dict[str, Any]] = {
    "binary": {"type": "boolean", "role": "label", "vocabulary": [False, True]},
    "classes": {"type": "integer", "role": "label", "vocabulary": [5, 3, 9]},
    "regression": {"type": "number", "role": "label"},
    "counts": {"type": "integer", "role": "label"},
}
UNITS = {"binary": 1, "classes": 3, "regression": 1, "counts": 1}
OUTPUT = {"binary": "probability", "classes": "probabilities", "regression": "prediction", "counts": "prediction"}


def exported(folder: Path, task: str) -> Path:
    """An export as a job makes it."""
    columns = {
        "x": {"type": "number", "role": "numeric"},
        "city": {"type": "text", "role": "categorical", "vocabulary": ["a", "b"]},
        "y": LABELS[task],
    }
    schema = TableSchema.model_validate({"task": task, "columns": columns})
    chance, made = np.random.default_rng(0), TreeColumns(schema)
    rows = {"x": chance.normal(size=200), "city": np.array([b"a", b"b"], object)[chance.integers(2, size=200)]}
    matrix = matrix_of(made, made.matrix(rows), 1)
    matrix.set_label(chance.integers(3, size=200) if task in ("classes", "counts") else rows["x"] > 0)
    booster = xgb.train(parameters(GBDTModel(schema=schema), schema, 1, 0), matrix, 5)
    (folder / "7" / "assets").mkdir(parents=True)
    (folder / "7" / "assets" / "schema.yaml").write_text(schema.to_yaml())
    content = bytes(booster.save_raw("ubj"))
    about = {"step": 5, "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "7" / "hpc_train.json").write_text(json.dumps(about))
    (folder / "7" / MODEL_FILE).write_bytes(content)
    return folder / "7"


@pytest.mark.parametrize("task", list(LABELS))
def test_of_no_rows_outputs_have_their_width(task: str, tmp_path: Path) -> None:
    exported(tmp_path, task)
    found = load_export(tmp_path).predict({"x": np.zeros(0), "city": np.zeros(0, object)})
    assert found[OUTPUT[task]].shape == (0, UNITS[task])
    assert found[OUTPUT[task]].dtype == np.float32


@pytest.mark.parametrize("task", list(LABELS))
def test_outputs_are_those_of_other_built_in_models(task: str, tmp_path: Path) -> None:
    path = exported(tmp_path, task)
    export = load_export(tmp_path)
    assert (export.path, export.step, list(export.inputs)) == (path, 5, ["x", "city"])
    found = export.predict({"x": np.array([1.0, np.nan]), "city": np.array([b"b", b""], object)})
    assert list(found) == [OUTPUT[task]]
    values = found[OUTPUT[task]]
    assert (values.shape, values.dtype) == ((2, UNITS[task]), np.float32)
    assert np.isfinite(values).all()
    if task == "classes":
        np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-6)
    digest, text = export.digest(), (path / "assets" / "schema.yaml").read_text()
    assert load_export(tmp_path).digest() == digest
    (path / "assets" / "schema.yaml").write_text(text.replace("[a, b]", "[b, a]"))
    assert load_export(tmp_path).digest() != digest


def test_damaged_exports_are_refused_in_one_sentence(tmp_path: Path) -> None:
    path = exported(tmp_path, "binary")
    content = (path / MODEL_FILE).read_bytes()
    for damaged in (b"", b"no booster", content[: len(content) // 2]):
        (path / MODEL_FILE).write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.ubj: is not what hpc_train\.json beside it records") as refused:
            load_export(path)
        assert "\n" not in str(refused.value)
    (path / MODEL_FILE).write_bytes(content)
    (path / "assets" / "schema.yaml").unlink()
    with pytest.raises(UserError, match=r"schema\.yaml: cannot be read"):
        load_export(path)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("[a, b]", "[b, a]"),
        ("[5, 3, 9]", "[3, 5, 9]"),
        ("{type: number, role: numeric}", "{type: number, role: ignored}"),
    ],
)
def test_a_schema_that_the_trees_were_not_grown_with_is_refused(was: str, now: str, tmp_path: Path) -> None:
    path = exported(tmp_path, "classes")
    file, about = path / "assets" / "schema.yaml", json.loads((path / "hpc_train.json").read_text())
    text = file.read_text()
    (path / "hpc_train.json").write_text(json.dumps({**about, "schema": digest_of(read_schema(file))}))
    file.write_text(text + "separator: ;\n")  # how a table is read may change
    load_export(path)
    assert was in text, text
    file.write_text(text.replace(was, now))
    with pytest.raises(UserError, match=r"schema\.yaml: has other columns, roles or vocabularies") as refused:
        load_export(path)
    assert "\n" not in str(refused.value)


def test_where_xgboost_is_missing_the_way_on_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", none)
    with pytest.raises(UserError, match=r"which is not installed; pip install 'hpc_train\[gbdt\]'"):
        xgboost()


def test_trees_have_no_tables_that_could_go_into_shards(tmp_path: Path) -> None:
    unused: Any = None
    exporters = TreeExporters(tmp_path, [FinalExporter(tables="shards")], unused, unused, unused, {})
    with pytest.raises(UserError, match="exporter 'final': tables: shards, but trees have no such tables"):
        exporters.check(())

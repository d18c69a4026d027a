"""Exported models loaded for Keras, with tables in them and beside them; what cannot be loaded is told."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.config.exporters import FinalExporter
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.export.exporters import ExporterRunner
from hpc_train.export.signature import signature_of
from hpc_train.export.whole_model import WholeModel
from hpc_train.inference.exported_model import load_exported_model
from hpc_train.inference.loaded_export import load_export
from hpc_train.parallel import ColumnDense, ShardedEmbedding
from hpc_train.warm_start.source import read_source

IDS = np.array([[1, 2, 0], [12, 5, 1]])


class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs


def build(*layers):
    tokens = keras.Input((3,), dtype="int64", name="tokens")
    x = keras.layers.GlobalAveragePooling1D()(ShardedEmbedding(13, 4, mask_zero=True, name="words")(tokens))
    for layer in layers:
        x = layer(x)
    model = keras.Model(tokens, ColumnDense(2, name="scores")(x))
    model.compile("adam", "mse")
    return model


def export(folder: Path, model: keras.Model, tables: str = "shards", another=build) -> Path:
    """Exports the model, as a job on one rank does."""
    exporter = FinalExporter(tables=tables)
    whole = WholeModel(World.alone(), model, another, [exporter]) if tables == "shards" else None
    signature = signature_of(model, (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None])))
    exported = whole.model if whole else model
    runner = ExporterRunner(folder, [exporter], exported, signature, {}, SimpleNamespace, weights=whole)
    runner.check(())

    def run():
        return runner.after_evaluation(3, 1.0, {"loss": 1.0}, last=True)

    (done,) = whole.exporting(run, int) if whole else run()
    assert done.error is None, done.error
    return done.path


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture
def shards(model, tmp_path):
    return export(tmp_path, model)


def test_a_model_whose_tables_are_in_shards_predicts_as_the_one_that_has_them(model, shards, tmp_path):
    whole = load_exported_model(export(tmp_path / "whole", model, "whole"))
    for loaded in (load_exported_model(shards, check_digests=True), load_exported_model(str(shards.parent)), whole):
        assert np.asarray(loaded(IDS)).tobytes() == np.asarray(model(IDS)).tobytes()
        np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0))
    found = load_export(shards).predict({"tokens": IDS})
    np.testing.assert_allclose(found["scores"], model(IDS), rtol=1e-6)
    np.testing.assert_array_equal(whole.layers[1].embeddings, model.layers[1].embeddings)


def test_ids_that_the_table_does_not_have_are_refused(shards):
    loaded = load_exported_model(shards)
    with pytest.raises(UserError, match="1 of 3 ids are outside its table, which has the rows 0 to 12: \\[13\\]"):
        loaded(np.array([[1, 2, 13]]))


def test_classes_of_ones_own_are_given_by_name(tmp_path):
    own = build(Doubled())
    path = export(tmp_path, own, another=lambda: build(Doubled()))
    with pytest.raises(UserError, match="of your own have to be given as custom_objects"):
        load_exported_model(path)
    loaded = load_exported_model(path, {"Doubled": Doubled})
    np.testing.assert_array_equal(loaded(IDS), own(IDS))


def test_layers_that_are_code_are_refused(tmp_path):
    def code():
        return build(keras.layers.Lambda(lambda x: x * 2))

    with pytest.raises(UserError, match=r"Keras cannot load it: .*[Ll]ambda"):
        load_exported_model(export(tmp_path, code(), another=code))


def test_keras_alone_and_a_warm_start_are_told_where_the_rows_are(shards):
    for load in (keras.models.load_model, read_source):
        with pytest.raises(UserError, match=r"words .*: its rows lie in the folder tables/ .*load_exported_model"):
            load(shards / "model.keras")


def index_of_other_rows(path: Path) -> None:
    index = json.loads((path / "tables" / "index.json").read_text())
    index["tables"][0]["name"] = "others"
    (path / "tables" / "index.json").write_text(json.dumps(index))


def without_tables(path: Path) -> None:
    for file in (path / "tables").iterdir():
        file.unlink()
    (path / "tables").rmdir()
    (path / "saved_model.pb").touch()


def cut_short(path: Path) -> None:
    (path / "model.keras").write_bytes((path / "model.keras").read_bytes()[:100])


def other_model(path: Path) -> None:
    with zipfile.ZipFile(path / "model.keras", "w") as file:
        file.writestr("config.json", '{"module": "os", "class_name": "system", "config": {}}')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (index_of_other_rows, "has no table 'words' of 13 rows of 4 float32, as the model has"),
        (without_tables, "its rows lie in the folder tables/ beside this file"),
        (cut_short, r"model\.keras: Keras cannot load it"),
        (other_model, r"model\.keras: "),
        (lambda path: (path / "model.keras").unlink(), r"model\.keras: cannot be read: No such file or directory"),
        (lambda path: (path / "tables" / "table-0-00000.npy").unlink(), "table-0-00000.npy: cannot be read"),
    ],
)
def test_an_export_that_is_not_whole_is_refused(shards, change, said):
    change(shards)
    with pytest.raises(UserError, match=said):
        load_exported_model(shards)


@pytest.mark.parametrize(
    "about", [{}, {"structure": "a"}, {"structure": "tokens", "signature": {"inputs": {"tokens": {"shape": "x"}}}}]
)
def test_what_does_not_say_how_it_is_called_does_not_predict(shards, about):
    (shards / "hpc_train.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"hpc_train\.json: does not say how the model is called"):
        load_export(shards)

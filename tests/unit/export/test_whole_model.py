"""The whole model on the chief, of one of which ranks hold parts; and which of its tables lie outside of it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from tensorflow.python.eager.context import context

from hpc_train.config.exporters import BestExporter, FinalExporter, LatestExporter
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placed
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.export import whole_model
from hpc_train.export.whole_model import WholeModel, bytes_needed, in_shards
from hpc_train.parallel import ShardedEmbedding

FINAL, SHARDS, WHOLE = (FinalExporter(tables=tables) for tables in ("auto", "shards", "whole"))
SERVED = LatestExporter("served", serving_fn=lambda model: None)


def build(rows=6, name="words"):
    ids = keras.Input((), dtype="int32")
    return keras.Model(ids, keras.layers.Dense(1)(ShardedEmbedding(rows, 2, name=name)(ids)))


@pytest.fixture
def parts():
    with placed(Mesh(3, 1, 0)):
        return build()


def test_it_is_whole_on_the_chief_in_the_hosts_memory_and_built_alike(parts):
    def on_host():
        assert context().device_name.endswith("CPU:0")
        return build()

    whole = WholeModel(World.alone(), parts, on_host, [FINAL])
    assert [tuple(v.shape) for v in whole.model.variables] == [(6, 2), (2, 1), (1,)]
    assert (tuple(parts.variables[0].shape), whole.tables) == ((2, 2), ())


def test_tables_lie_outside_where_that_is_asked_for_and_are_streamed_as_they_are_then(monkeypatch):
    parts = build()
    monkeypatch.setattr(whole_model, "BLOCK_BYTES", 16)
    whole = WholeModel(World.alone(), parts, build, [SHARDS])
    assert [tuple(v.shape) for v in whole.model.variables] == [(0, 2), (2, 1), (1,)]
    parts.set_weights([np.arange(12.0).reshape(6, 2), np.ones((2, 1)), np.ones(1)])
    (table,) = whole.tables
    assert (table.name, table.shape, table.dtype, table.nbytes) == ("words", (6, 2), np.float32, 48)
    moves, found = [], []

    def export():
        whole.refresh()
        table.stream(lambda first, values: found.append((first, values.reshape(-1).tolist())))
        return "done"

    assert whole.exporting(export, lambda: moves.append(0)) == "done"
    assert found == [(0, [0, 1, 2, 3]), (4, [4, 5, 6, 7]), (8, [8, 9, 10, 11])]
    assert len(moves) == 3
    np.testing.assert_array_equal(whole.model.variables[1], np.ones((2, 1)))


def test_weights_are_brought_together_when_something_is_exported_and_once():
    def dense():
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])

    parts = dense()
    (kernel,) = parts.variables
    whole = WholeModel(World.alone(), parts, dense, [FINAL])

    def found(export):
        whole.exporting(export, int)
        return float(whole.model.variables[0][0, 0])

    def twice():
        whole.refresh()
        kernel.assign([[2.0]])
        whole.refresh()

    kernel.assign([[1.0]])
    assert [found(export) for export in (int, twice, whole.refresh)] == [0.0, 1.0, 2.0]


def test_what_is_exported_of_a_model_that_a_rank_has_whole_needs_another_one_for_shards_alone(parts):
    assert WholeModel.is_needed(parts, [FINAL])
    assert not WholeModel.is_needed(parts, [])
    assert not WholeModel.is_needed(build(), [FINAL, WHOLE])
    assert WholeModel.is_needed(build(), [FINAL, SHARDS])


def test_where_tables_go(parts, monkeypatch, caplog):
    caplog.set_level("INFO")
    whole, apart = bytes_needed(parts), bytes_needed(parts, [parts.variables[0]])
    assert (whole, apart) == (4 * (12 + 2 + 1 + 12) + 4 * (4 + 2 + 1), 4 * (2 + 1 + 2) + 4 * (4 + 2 + 1))
    assert not in_shards([FINAL], parts)
    assert in_shards([FINAL, SHARDS], parts)
    assert "tables are exported as shards beside the model (words)" in caplog.text
    monkeypatch.setattr(whole_model, "available_bytes", lambda: whole - 1)
    caplog.clear()
    assert in_shards([FINAL], parts)
    assert "whole it needs 136 B on the chief, which has 135 B; hpc_train.load_exported_model loads" in caplog.text
    for exporters in ([WHOLE], [FINAL, SERVED]):
        with pytest.raises(UserError, match=r"needs 136 B .* 135 B; export tables as shards .* without a serving_fn"):
            in_shards(exporters, parts)
    monkeypatch.setattr(whole_model, "available_bytes", lambda: apart - 1)
    with pytest.raises(UserError, match=r"needs 136 B on the chief, which has 47 B; leave the exporters out"):
        in_shards([FINAL], parts)
    with pytest.raises(UserError, match=r"the model without its tables needs 48 B on the chief, which has 47 B"):
        in_shards([SHARDS], parts)


@pytest.mark.parametrize(
    ("exporters", "said"),
    [
        ([SHARDS, BestExporter(tables="whole")], "exporters 'best' and 'final': tables is whole for one and shards"),
        (
            [SHARDS, SERVED],
            "exporter 'served': has a serving_fn, for which there is no SavedModel where",
        ),
    ],
)
def test_exporters_that_do_not_go_together_are_refused(parts, exporters, said):
    with pytest.raises(UserError, match=said):
        in_shards(exporters, parts)


def test_shards_of_a_model_without_tables_or_with_two_of_one_name_are_refused():
    dense = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(UserError, match=r"exporter 'final': tables: shards, but the model has no ht.parallel.Sharded"):
        in_shards([SHARDS], dense)

    def twice():
        ids = keras.Input((), dtype="int32")
        return keras.Model(ids, keras.layers.Dense(1)(build()(ids) + build()(ids)))

    assert not in_shards([FINAL], twice())
    with pytest.raises(UserError, match=r"two layers .* are called 'words'"):
        WholeModel(World.alone(), twice(), twice, [SHARDS])


def test_shards_and_a_serving_fn_of_one_exporter_are_refused_with_the_job():
    with pytest.raises(UserError, match="tables: shards is not allowed with a serving_fn"):
        FinalExporter(serving_fn=lambda model: None, tables="shards")

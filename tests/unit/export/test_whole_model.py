"""The whole model on the chief, of one of which ranks hold parts."""

from __future__ import annotations

import keras
import pytest

from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placed
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.export import whole_model
from hpc_train.parallel import ShardedEmbedding


def build(rows=6):
    ids = keras.Input((), dtype="int32")
    return keras.Model(ids, keras.layers.Dense(1)(ShardedEmbedding(rows, 2)(ids)))


def test_it_is_whole_on_the_chief_and_built_alike():
    with placed(Mesh(3, 1, 0)):
        parts = build()
    whole = whole_model.WholeModel(World.alone(), parts, build).model
    assert [tuple(v.shape) for v in whole.variables] == [(6, 2), (2, 1), (1,)]
    assert tuple(parts.variables[0].shape) == (2, 2)


def test_a_model_that_does_not_fit_the_chief_is_refused_before_it_is_built(monkeypatch):
    with placed(Mesh(3, 1, 0)):
        parts = build()
    monkeypatch.setattr(whole_model, "available_bytes", lambda: 100)
    with pytest.raises(UserError, match=r"needs 108 B on the chief, which has 100 B; leave the exporters out"):
        whole_model.WholeModel(World.alone(), parts, pytest.fail)

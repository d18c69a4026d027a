"""All counterparts, found by full name. Pure."""

from __future__ import annotations

from hpc_train.migration.counterparts.contrib import CONTRIB_TABLE, out_of_contrib
from hpc_train.migration.counterparts.estimator import ESTIMATOR_TABLE
from hpc_train.migration.counterparts.horovod import HOROVOD_TABLE
from hpc_train.migration.counterparts.keras import KERAS_TABLE, OPERATIONS_TABLE
from hpc_train.migration.counterparts.row import Counterpart, Tables

_EVERYWHERE = Tables(ESTIMATOR_TABLE, CONTRIB_TABLE, KERAS_TABLE, HOROVOD_TABLE)
_IN_MODELS = Tables(ESTIMATOR_TABLE, CONTRIB_TABLE, KERAS_TABLE, OPERATIONS_TABLE, HOROVOD_TABLE)


def row_of(name: str | None, in_model: bool = False) -> Counterpart | None:
    """The row of a full name, also of what lay in tf.contrib; None: it needs no replacement.

    Args:
        in_model: Whether it stands in a model function.
    """
    if name is None:
        return None
    tables = _IN_MODELS if in_model else _EVERYWHERE
    return tables.find(out_of_contrib(name, tables)) if name.startswith("tf.contrib.") else tables.find(name)

"""All counterparts, found by full name. Pure."""

from __future__ import annotations

from hpc_train.migration.counterparts.contrib import out_of_contrib
from hpc_train.migration.counterparts.estimator import ESTIMATOR_TABLE
from hpc_train.migration.counterparts.horovod import HOROVOD_TABLE
from hpc_train.migration.counterparts.keras import KERAS_TABLE
from hpc_train.migration.counterparts.row import Counterpart, Tables

TABLES = Tables(ESTIMATOR_TABLE, KERAS_TABLE, HOROVOD_TABLE)


def row_of(name: str | None) -> Counterpart | None:
    """The row of a full name, also of what lay in tf.contrib; None: it needs no replacement."""
    if name is None:
        return None
    return TABLES.find(out_of_contrib(name, TABLES)) if name.startswith("tf.contrib.") else TABLES.find(name)

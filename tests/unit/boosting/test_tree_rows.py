"""Labels of shards that trees cannot learn are refused before XGBoost sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_train.boosting.rows import read_rows
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.table_schema import TableSchema
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.errors import UserError
from hpc_train.trees.columns import TreeColumns

LABELS: dict[str, dict[str, Any]] = {
    "binary": {"type": "boolean", "role": "label", "vocabulary": [False, True]},
    "regression": {"type": "number", "role": "label"},
}


@pytest.mark.parametrize(
    ("task", "label", "said"),
    [
        ("binary", 2.0, "row 3 of the shards has the label 2, not a whole number from 0 to 1"),
        ("regression", float("nan"), "row 3 of the shards has the label nan, not a number up to 3.4e+38"),
        ("regression", -1e39, "row 3 of the shards has the label -1e+39, not a number up to 3.4e+38"),
    ],
)
def test_labels_that_cannot_be_learnt_are_refused(task: str, label: float, said: str, tmp_path: Path) -> None:
    columns = {"x": {"type": "number", "role": "numeric"}, "y": LABELS[task]}
    schema = TableSchema.model_validate({"task": task, "columns": columns})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.arange(4.0), np.array([0, 1, 1, label])
    shards = find_shards(HDF5Input((str(tmp_path / "a.h5"),), features=("x",), label=("y",), batch_size=1))
    with pytest.raises(UserError, match=re.escape(said)):
        read_rows(shards, 0, 1, TreeColumns(schema), schema)
    assert read_rows(shards, 0, 2, TreeColumns(schema), schema).labels.tolist() == [0.0, 1.0]

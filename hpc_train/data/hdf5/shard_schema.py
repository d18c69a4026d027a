"""The attribute in which a shard says what it holds: as JSON `version`, `rows` and, by name, `columns`."""

from __future__ import annotations

import json
from pathlib import Path

from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.hdf5.input_file import InputFile

SCHEMA_ATTRIBUTE = "hpc_train_schema"
MOST_CLASSES = 1000
"""Of a label, that an attribute names."""

Classes = tuple[bool | int | float | str, ...]
"""In the order of their numbers."""


def kept_classes(path: str | Path, dataset: str) -> Classes:
    """The classes that the shard `path` names for the label `dataset`; empty where it names none. Local.

    Raises:
        OSError: It is no HDF5 file.
    """
    with InputFile(path) as file:
        try:
            found = json.loads(file.text(SCHEMA_ATTRIBUTE))["columns"][dataset]["classes"]
        except HDF5_ERRORS:  # it lies in no shard of hpc-train shard --schema
            return ()
    is_known = isinstance(found, list) and all(isinstance(each, bool | int | float | str) for each in found)
    return tuple(found) if is_known and len(found) <= MOST_CLASSES else ()

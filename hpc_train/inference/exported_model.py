"""Which export a folder means, and the Keras model of one, whose tables may lie in shards beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hpc_train.arguments import check_path, check_type, checked_arguments
from hpc_train.distributed.placement import tables_outside
from hpc_train.distributed.share import share_of
from hpc_train.distributed.tensors import dtype_of
from hpc_train.errors import UserError
from hpc_train.export.exporters import KERAS_FILE
from hpc_train.export.table_shards import INDEX_FILE, TABLES, open_tables
from hpc_train.files import require_regular
from hpc_train.lazy import keras
from hpc_train.text import visible
from hpc_train.trees.booster import MODEL_FILE


@checked_arguments
def load_exported_model(
    folder: str | Path, custom_objects: Mapping[str, Any] | None = None, check_digests: bool = False
) -> keras.Model:
    """The Keras model of an export, or of the newest one of an exporter's folder.

    Where the tables of its ht.parallel.ShardedEmbedding lie in shards beside it, these are mapped into memory: a call
    reads the rows of its batch. The shards have to stay where they are as long as the model is used; it cannot train
    them, nor be saved with them.

    Args:
        custom_objects: As in keras.models.load_model: layers and functions of your own by name, unless they are
            registered with Keras.
        check_digests: Compare all bytes of the shards with their digests, which reads all of them; else their sizes.

    Raises:
        UserError: There is no export, or its model cannot be loaded (a Lambda layer is refused, since it is code), or
            a shard is missing or not what was written.
    """
    check_path("load_exported_model", "folder", folder, "an export")
    if custom_objects is not None:
        check_type("load_exported_model", "custom_objects", custom_objects, Mapping, "a dict of classes by name")
    check_type("load_exported_model", "check_digests", check_digests, bool, "true or false")
    found = newest_export(Path(folder)).absolute()
    tables, path = open_tables(found, check_digests), found / KERAS_FILE
    from hpc_train.parallel.divided import shortened  # and Keras knows all layers of ht.parallel
    from hpc_train.parallel.sharded_embedding import tables_of

    try:
        require_regular(path, follow=True)
        with tables_outside({name: table.rows for name, table in tables.items()}) if tables else nullcontext():
            model = keras.models.load_model(path, dict(custom_objects or {}), compile=False)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {visible(error.strerror or str(error))}") from None
    except Exception as error:  # Keras's own words of what it does not know or take
        raise UserError(
            f"{path}: Keras cannot load it: {visible(shortened(error))}\n"
            "Layers and functions of your own have to be given as custom_objects, or registered with Keras "
            "(keras.saving.register_keras_serializable); Lambda layers are refused, since they hold code"
        ) from None
    for name, table in tables_of(model).items() if tables else ():
        share, index = share_of(table), tables[name].index if name in tables else None
        assert share is not None, "it was built without its rows"
        if index is None or ((index.rows, index.width), index.dtype) != (share.shape, dtype_of(table).name):
            raise UserError(
                f"{found / TABLES / INDEX_FILE}: has no table {visible(name)!r} of {share.shape[0]:,} rows of "
                f"{share.shape[1]:,} {dtype_of(table).name}, as the model has; copy the export anew"
            )
    return model


def _is_export(path: Path) -> bool:
    return any((path / name).exists() for name in ("saved_model.pb", MODEL_FILE, f"{TABLES}/{INDEX_FILE}"))


def newest_export(path: Path) -> Path:
    """`path`, or the newest export in it, where it is an exporter's folder; UserError where it is neither."""
    if _is_export(path):
        return path
    if not path.is_dir():
        raise UserError(f"{path}: there is no such folder; an export is JOBDIR/export/NAME/NUMBER")
    exports = [p for p in path.iterdir() if p.name.isdigit() and _is_export(p)]
    if not exports:
        raise UserError(f"{path}: is no export, nor a folder of them; an export is JOBDIR/export/NAME/NUMBER")
    return max(exports, key=lambda p: int(p.name))

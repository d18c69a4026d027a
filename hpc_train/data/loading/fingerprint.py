"""The job-dir's record of the shards a job began with. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.errors import UserError


def record_of(shards: ShardSet) -> list[dict[str, Any]]:
    """Name, rows and bytes of each shard. Folders are left out: data may move."""
    each = zip(shards.paths, shards.shard_rows, shards.file_bytes, strict=True)
    return [{"file": Path(path).name, "rows": rows, "bytes": size} for path, rows, size in each]


def check_record(began: list[dict[str, Any]], shards: ShardSet, where: Path) -> None:
    """Compares `shards` with what `record_of` gave when the job began.

    Raises:
        UserError: A shard has changed, is new, or is gone: the order of rows would be another one.
    """
    now = record_of(shards)
    remedy = f"begin a new job-dir, or remove {where} to go on with the data as they are now"
    for then, path, here in zip(began, shards.paths, now, strict=False):
        if then["file"] != here["file"]:
            raise UserError(f"{path}: the job began with {then['file']} in its place; {remedy}")
        if then != here:
            raise UserError(
                f"{path}: has changed since the job began: {then['rows']} rows in {then['bytes']} bytes then, "
                f"{here['rows']} rows in {here['bytes']} bytes now; {remedy}"
            )
    if len(began) != len(now):
        raise UserError(
            f"{shards.paths[0]}: the job began with {len(began)} shards, now there are {len(now)}; {remedy}"
        )

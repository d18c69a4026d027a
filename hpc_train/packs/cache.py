"""Packs that were made for jobs, kept for the next ones: of an environment that has not changed, one is made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.files import is_ours
from hpc_train.folders import exposure, make_folder
from hpc_train.packs.archive import plan_pack, write_pack
from hpc_train.telemetry.json_files import read_json, write_json
from hpc_train.telemetry.units import size


def cache_folder(env: Mapping[str, str], home: Path) -> Path:
    """Where they are kept."""
    return Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "hpc_train/packs"


def pack_of(venv: Path, folder: Path, report: Callable[[str], None]) -> tuple[Path, str]:
    """The pack of an environment as it is now, made unless `folder` has it, and its SHA-256.

    Raises:
        UserError: It cannot be made.
    """
    planned = plan_pack(venv, report)
    path = folder / f"{planned.manifest.contents[:32]}.tar"
    note = path.with_suffix(".json")
    try:
        make_folder(folder, 0o700)
        if (who := exposure(folder)) is not None:
            raise UserError(f"{folder}: {who}, so that packs in it could be changed: chmod go-w it, or remove it")
        known = read_json(note)
        if is_ours(path) and known.get("bytes") == path.stat().st_size and isinstance(known.get("sha256"), str):
            os.utime(path)
            return path, known["sha256"]
        report(f"makes a pack of {venv}, {size(planned.manifest.bytes)}: {path}")
        written = write_pack(path, planned)
        write_json(note, {"bytes": written.bytes, "sha256": written.sha256})
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return path, written.sha256

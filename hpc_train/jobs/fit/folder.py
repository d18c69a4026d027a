"""The folder that `hpc-train fit` makes: schema.yaml, data/, job.yaml and the job-dir, one after the other."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.folders import make_folder
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobs.fit.request import FitRequest
from hpc_train.jobs.record.job_dirs import DEFAULT_ROOT
from hpc_train.telemetry.json_files import read_json, write_json

RECORD = "fit.json"
TABLES = "tables"
"""In it: States of the files of the table."""
States = Mapping[str, Mapping[str, list[int]]]
"""Of `files` and of `eval`, by their full paths: bytes, and when they were modified, in ns since 1970."""
OF_JOB_FILE = ("model", "set", "ranks")
"""What of a request only job.yaml is made of; all else decides the schema, too."""
LONGEST_NAME = 64


@dataclass(frozen=True)
class FitFolder:
    """What lies in the folder `path`. Local."""

    path: Path

    @classmethod
    def of(cls, out: Path | None, request: FitRequest) -> FitFolder:
        """`out`, or a folder here that is called as the table's first file is."""
        if out is not None:
            return cls(out)
        name = Path(request.files[0]).name.split(".")[0]
        name = re.sub(r"[*?\[\]]+", "", name).strip("-_ ")
        if not name:
            raise UserError(f"--out FOLDER is missing: {request.files[0]} has no name that a folder can have")
        return cls(Path(name))

    @property
    def schema(self) -> Path:
        return self.path / "schema.yaml"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def job_file(self) -> Path:
        return self.path / "job.yaml"

    @property
    def name(self) -> str:
        """Of the job: the folder's, as names of jobs are."""
        name = re.sub(r"[^A-Za-z0-9_]+", "_", self.path.absolute().name)[:LONGEST_NAME].strip("_")
        return name if re.match("[A-Za-z]", name) else f"table_{name}".rstrip("_")

    @property
    def job_dir(self) -> JobDir:
        return JobDir(self.path / DEFAULT_ROOT / self.name)

    def begin(self, asked: dict[str, Any], tables: States, from_tables: bool) -> None:
        """Makes the folder, or looks whether what is in it is of the same request, which is to go on.

        Args:
            tables: The files that it is of, as they are now.
            from_tables: Whether the schema is found from `files`.

        Raises:
            UserError: It holds something else, is of another request, or of a table that has changed since. OSError: it
                cannot be made.
        """
        record, before = self.path / RECORD, {}
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UserError(f"{self.path}: is there already, and no folder; --out names another one")
        if self.path.is_dir() and any(self.path.iterdir()) and not (before := read_json(record)):
            raise UserError(f"{self.path}: is there already, not made by hpc-train fit; --out names another folder")
        known = before.pop(TABLES, {})
        if not isinstance(known, dict) or not all(isinstance(each, dict) for each in known.values()):
            known = {}
        for name in {**before, **asked}:
            made = self.job_file if name in OF_JOB_FILE else self.schema
            if made.exists() and before.get(name) != asked.get(name):
                was = _shown(before[name]) if name in before else "not given"
                raise UserError(
                    f"{self.path}: was made by another command, in which {_named(name)} was {was}; give that command "
                    "again to go on, or another --out to begin anew"
                )
        self._check_tables(known, tables, from_tables)
        make_folder(self.path)
        if not self.job_file.exists():
            known = tables
        write_json(record, {**asked, TABLES: known})

    def _check_tables(self, known: States, tables: States, from_tables: bool) -> None:
        """UserError where a file is another one than that which the schema, or the shards, were made of."""
        if not known:
            return
        if self.job_file.exists():
            was, now = ({**found.get("files", {}), **found.get("eval", {})} for found in (known, tables))
            changed = [path for path in now if was.get(path) != now[path]]  # what is gone is of no use any more
            made, way = self.data, f"go on without it: hpc-train launch {self.job_file} --job-dir {self.job_dir.path}"
        elif self.schema.exists() and from_tables:
            was, now = (dict(found.get("files", {})) for found in (known, tables))
            changed = [path for path in {**was, **now} if was.get(path) != now.get(path)]
            made, way = self.schema, "remove that file, which is then made anew"
        else:
            return
        if changed:
            raise UserError(
                f"{changed[0]}: has changed since {made} was made of it; {way}, or give another --out to begin anew"
            )


def _named(name: str) -> str:
    return "the table" if name == "files" else f"--{name}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

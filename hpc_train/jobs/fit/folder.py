"""The folder that `hpc-train fit` makes: schema.yaml, data/, job.yaml and the job-dir, one after the other."""

from __future__ import annotations

import os
import re
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

    def begin(self, asked: dict[str, Any]) -> None:
        """Makes the folder, or looks whether what is in it is of the same request, which is to go on.

        Raises:
            UserError: It holds something else, or is of another request. OSError: it cannot be made.
        """
        record, before = self.path / RECORD, {}
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UserError(f"{self.path}: is there already, and no folder; --out names another one")
        if self.path.is_dir() and any(self.path.iterdir()) and not (before := read_json(record)):
            raise UserError(f"{self.path}: is there already, not made by hpc-train fit; --out names another folder")
        for name in {**before, **asked}:
            made = self.job_file if name in OF_JOB_FILE else self.schema
            if made.exists() and before.get(name) != asked.get(name):
                was = _shown(before[name]) if name in before else "not given"
                raise UserError(
                    f"{self.path}: was made by another command, in which {_named(name)} was {was}; give that command "
                    "again to go on, or another --out to begin anew"
                )
        make_folder(self.path)
        write_json(record, asked)


def _named(name: str) -> str:
    return "the table" if name == "files" else f"--{name}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

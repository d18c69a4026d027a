"""Exports of boosters: model.ubj, which plain XGBoost loads, beside the schema and what it was made of."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_train.config.exporters import Exporter
from hpc_train.config.table_schema import TableSchema
from hpc_train.data.loading.tf_dataset import Loader
from hpc_train.errors import UserError
from hpc_train.export.contents import versions
from hpc_train.export.export_dir import ABOUT_FILE
from hpc_train.export.exporters import Exporters
from hpc_train.files import create
from hpc_train.telemetry.json_files import write_json
from hpc_train.trees.booster import MODEL_FILE, OUTPUTS, xgboost
from hpc_train.trees.columns import TreeColumns, digest_of


class TreeExporters(Exporters):
    """Exporters of the booster that was evaluated last.

    Args:
        about: Goes into each export's hpc_train.json: job, job_dir, params, data.

    Attributes:
        content: The booster, as a `.ubj` file has it.
    """

    def __init__(
        self,
        job_dir: Path,
        exporters: Sequence[Exporter],
        load: Loader,
        schema: TableSchema,
        columns: TreeColumns,
        about: dict[str, Any],
    ) -> None:
        super().__init__(job_dir, exporters, load, schema=schema)
        self._columns, self._about = columns, about
        self.content = b""

    def prepare(self, exporter: Exporter) -> None:
        """UserError where it asks for what trees do not have."""
        if exporter.tables == "shards":
            raise UserError(f"exporter {exporter.name!r}: tables: shards, but trees have no such tables")

    def least_bytes(self) -> int:
        """Those of the booster."""
        return len(self.content)

    def fill(self, folder: Path, exporter: Exporter, of_this: dict[str, Any]) -> None:
        """Writes model.ubj, assets/schema.yaml and hpc_train.json."""
        with open(create(folder / MODEL_FILE), "wb") as file:
            file.write(self.content)
        self.add_schema(folder)
        schema = self._schema
        assert schema is not None
        assert schema.task is not None, "checked with the job"
        about = {
            **of_this,
            "time": time.time(),
            **self._about,
            "versions": {**versions(), "xgboost": xgboost().__version__},
            "model": MODEL_FILE,
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "schema": digest_of(schema),
            "input_order": self._columns.columns,
            "output": OUTPUTS[schema.task],
        }
        write_json(folder / ABOUT_FILE, about, to_disk=False)

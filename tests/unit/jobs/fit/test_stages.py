"""What hpc-train fit looks at before it makes anything, and how it trains by a schema of other rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest

from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.jobs.fit.folder import FitFolder
from hpc_train.jobs.fit.request import FitRequest
from hpc_train.jobs.fit.stages import Stages
from hpc_train.resilience.signals import StopSignals


def stages(folder: Path, **options: Any) -> Stages:
    none: Any = None
    return Stages(FitRequest(**options), FitFolder(folder), none, 4, lambda line: None)


def test_rows_are_not_both_trained_on_and_evaluated_with(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "link.csv").symlink_to("a.csv")
    found = stages(tmp_path / "out", files=(str(tmp_path / "a*"),), eval=(str(tmp_path / "link.csv"),), label="y")
    with pytest.raises(UserError, match=r"--eval .*link\.csv: its rows are those to train on, too; give another table"):
        found.run()
    assert not (tmp_path / "out").exists()


def test_a_schema_of_a_few_rows_trains_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are counted in the shards."""
    columns = {"x": {"type": "number", "role": "numeric"}, "y": {"type": "number", "role": "label"}}
    schema = TableSchema.model_validate({"task": "regression", "rows": 10, "columns": columns})
    (tmp_path / "s.yaml").write_text(schema.to_yaml())
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    out = tmp_path / "out [1]"
    found = stages(out, files=(str(tmp_path / "a.csv"),), schema=tmp_path / "s.yaml", model="linear")

    def shard(self: Stages, words: Any, signals: StopSignals, ranks: int = 1) -> None:
        with h5py.File(out / "data" / "train-00000.h5", "w") as file:
            for name in columns:
                file.create_dataset(name, (60_000,), "f8")

    monkeypatch.setattr(Stages, "_command", shard)
    found._prepare(StopSignals())
    assert "batch_size: 64" in (out / "job.yaml").read_text()
    assert "max_steps: 7060" in (out / "job.yaml").read_text()

"""The job.yaml that hpc-train fit makes is one that could have been written, for any number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_train.config.job import load_job
from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.jobs.fit.job_file import GOALS, batch_of, job_document, steps_of, text_of

LABELS: dict[str, Any] = {
    "binary": {"type": "boolean", "role": "label", "vocabulary": [False, True]},
    "classes": {"type": "text", "role": "label", "vocabulary": ["a", "b", "c"]},
    "regression": {"type": "number", "role": "label"},
    "counts": {"type": "integer", "role": "label"},
}


@pytest.mark.parametrize("task", list(GOALS))
@pytest.mark.parametrize("model", ["linear", "dnn", "wide_deep", "gbdt"])
def test_it_is_valid_as_it_was_written(task: Any, model: str, tmp_path: Path) -> None:
    columns = {"x": {"type": "number", "role": "numeric"}, "y": LABELS[task]}
    schema = TableSchema.model_validate({"task": task, "rows": 700, "columns": columns})
    (tmp_path / "schema.yaml").write_text(schema.to_yaml())
    path = tmp_path / "job.yaml"
    document = job_document(path, "mine", model, task, 700, 3, ["train.max_steps=50", "model.learning_rate=0.5"])
    path.write_text(text_of(document))
    job = load_job(path)
    assert (job.name, job.model.builtin, job.model.learning_rate) == ("mine", model, 0.5)  # type: ignore[union-attr]
    assert (job.train.max_steps, job.resources.ranks_per_node) == (50, 3)
    assert job.data.train.batch_size == (32 if model == "gbdt" else 21)  # which is the default
    exporter = job.eval.exporters[0]
    assert (exporter.name, exporter.metric, exporter.mode) == ("best", *GOALS[task])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rows", "batch", "steps"),
    [(0, 64, 1000), (3, 3, 1000), (50_000, 64, 20_000), (60_000, 256, 7060), (10**9, 4096, 20_000)],
)  # fmt: skip
def test_it_grows_with_the_rows(rows: int, batch: int, steps: int) -> None:
    assert (batch_of(rows), steps_of(rows)) == (batch, steps)


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(UserError, match="--set: 'max_steps' is not allowed"):
        job_document(Path("job.yaml"), "mine", "dnn", "binary", 700, 1, ["max_steps"])

"""What earlier runs have evaluated."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hpc_train.evaluation.previous import evaluation_of
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.metrics import METRICS_FILE, MetricsWriter

RECORD = {
    "kind": "eval", "step": 20, "time": 9.0, "loss": 0.5, "accuracy": 0.75, "secs": 1.0, "lag_steps": 0,
    "lag_secs": 2.0, "checkpoint_time": 7.25, "what": "ab12", "last": True,
}  # fmt: skip


def write(job_dir: Path, *records: dict[str, Any] | str) -> None:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (job_dir / METRICS_FILE).write_text("".join(f"{line}\n" for line in lines))


def test_the_metrics_alone(tmp_path: Path) -> None:
    write(tmp_path, RECORD)
    for only_last in (False, True):
        assert evaluation_of(tmp_path, "eval", 7.25, "ab12", only_last) == {"loss": 0.5, "accuracy": 0.75}


@pytest.mark.parametrize(
    ("kind", "taken", "what"),
    [("eval_x", 7.25, "ab12"), ("eval", 7.0, "ab12"), ("eval", 7.25, "cd34"), ("eval", 7.25, None)],
)
def test_what_is_not_the_same_is_evaluated_again(tmp_path: Path, kind: str, taken: float, what: str | None) -> None:
    write(tmp_path, RECORD, {**RECORD, "what": None})
    assert evaluation_of(tmp_path, kind, taken, what, False) is None


def test_only_those_made_at_the_end(tmp_path: Path) -> None:
    write(tmp_path, {**RECORD, "last": False}, {k: v for k, v in RECORD.items() if k != "last"})
    assert evaluation_of(tmp_path, "eval", 7.25, "ab12", True) is None
    assert evaluation_of(tmp_path, "eval", 7.25, "ab12", False) is not None


def test_the_newest_one_counts_and_nan_is_nan(tmp_path: Path) -> None:
    write(tmp_path, RECORD, {**RECORD, "loss": None})
    found = evaluation_of(tmp_path, "eval", 7.25, "ab12", True)
    assert found is not None
    assert math.isnan(found["loss"])
    assert found["accuracy"] == 0.75


def test_a_file_that_is_damaged_or_absent(tmp_path: Path) -> None:
    assert evaluation_of(tmp_path, "eval", 7.25, "ab12", False) is None
    write(tmp_path, "{torn", "3", "[1]", "null", RECORD, '{"kind": "eval", "st')
    assert evaluation_of(tmp_path, "eval", 7.25, "ab12", True) == {"loss": 0.5, "accuracy": 0.75}
    (tmp_path / METRICS_FILE).write_bytes(b"\xff\xfe\n" + json.dumps(RECORD).encode() + b"\n\xff")
    assert evaluation_of(tmp_path, "eval", 7.25, "ab12", True) == {"loss": 0.5, "accuracy": 0.75}


def test_what_is_written_is_found_to_the_bit(tmp_path: Path) -> None:
    taken, loss = 1763689377.1234567, 0.1 + 0.2
    with MetricsWriter(tmp_path, Lenient()) as metrics:
        beside = {"checkpoint_time": taken, "what": "ab12", "last": True}
        metrics.record("eval_x", 20, {"loss": loss, "secs": 1.0, "lag_steps": 0, "lag_secs": 1.5}, only_here=beside)
    assert evaluation_of(tmp_path, "eval_x", taken, "ab12", True) == {"loss": loss}

"""The reader of job-dirs: what earlier runs have evaluated, and files that are damaged, foreign or too large."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.errors import UserError
from hpc_train.jobdir import job_dir as reader
from hpc_train.jobdir import records
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.telemetry import json_files
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.metrics import METRICS_FILE, MetricsWriter

RECORD = {
    "kind": "eval", "step": 20, "time": 9.0, "loss": 0.5, "accuracy": 0.75, "secs": 1.0, "lag_steps": 0,
    "lag_secs": 2.0, "checkpoint_time": 7.25, "what": "ab12", "last": True,
}  # fmt: skip


def write(job_dir: Path, *records: dict[str, Any] | str) -> None:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (job_dir / METRICS_FILE).write_text("".join(f"{line}\n" for line in lines))


def evaluation_of(job_dir: Path, kind: str, taken: float, what: str | None, only_last: bool) -> dict[str, float] | None:
    return JobDir(job_dir).evaluation_of(taken, kind, what, only_last)


def test_the_metrics_alone(tmp_path: Path) -> None:
    write(tmp_path, RECORD)
    for only_last in (False, True):
        assert evaluation_of(tmp_path, "eval", 7.25, "ab12", only_last) == {"loss": 0.5, "accuracy": 0.75}


@pytest.mark.parametrize(
    ("kind", "taken", "what"),
    [("eval_x", 7.25, "ab12"), ("eval", 7.0, "ab12"), ("eval", 7.25, "cd34")],
)
def test_what_is_not_the_same_is_evaluated_again(tmp_path: Path, kind: str, taken: float, what: str | None) -> None:
    write(tmp_path, RECORD, {**RECORD, "what": None})
    assert evaluation_of(tmp_path, kind, taken, what, False) is None


def test_the_data_need_not_be_known(tmp_path: Path) -> None:
    write(tmp_path, RECORD, {**RECORD, "what": None, "loss": 0.25})
    assert evaluation_of(tmp_path, "eval", 7.25, None, False) == {"loss": 0.25, "accuracy": 0.75}


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


def line(kind: str, step: int, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "time": 1.0, **values}


def test_superseded_evaluations_are_left_out(tmp_path: Path) -> None:
    assert JobDir(tmp_path).evaluations() == {}
    write(
        tmp_path,
        line("start", 0, ranks=2),
        line("train", 10, loss=3.0),
        line("eval", 10, loss=1.0),
        line("eval_b", 20, loss=2.0),
        line("eval", 30, loss=0.0),
        line("start", 20),
        '{"kind": "eval", "st',
        line("eval", 40, loss=None, name="text"),
        line("evaluated", 45, loss=3),
        line("eval", 50, loss=9.0),
    )
    found = JobDir(tmp_path).evaluations()
    assert list(found["eval"]) == [10, 40, 50] and found["eval_b"] == {20: {"loss": 2.0}}
    assert math.isnan(found["eval"][40]["loss"]) and "name" not in found["eval"][40]
    assert list(JobDir(tmp_path).evaluations(40)["eval"]) == [10, 40]


def test_lines_that_are_too_long_are_passed_over_and_those_of_other_kinds_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 200)
    long = [line("eval", step, note="x" * size) for step, size in ((2, 150), (3, 600), (4, 5000))]
    write(tmp_path, line("eval", 1), *long, line("train", 5), line("eval", 6), json.dumps(line("eval", 7))[:-1])
    assert [record.step for record in JobDir(tmp_path).records()] == [1, 5, 6]
    parsed: list[str] = []
    monkeypatch.setattr(records.json, "loads", lambda text: parsed.append(text) or {})
    assert list(JobDir(tmp_path).records(lambda kind: kind == "train")) == []
    assert ["train" in text for text in parsed] == [True]


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    wrong = ({"step": -1}, {"step": 1.5}, {"step": None}, {"step": 1e16}, {"time": "now"}, {"time": 1e12}, {"kind": 3})
    write(tmp_path, *({**line("eval", 1), **change} for change in wrong), {"kind": "eval", "step": 1}, "[" * 100_000)
    assert list(JobDir(tmp_path).records()) == []


def test_files_that_are_too_large_or_no_objects_count_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_JSON_BYTES", 100)
    job_dir = JobDir(tmp_path)
    for text, found in (('{"state": "running"}', {"state": "running"}), ("[1]", {}), ("[" * 99, {})):
        (tmp_path / "status.json").write_text(text)
        assert job_dir.status() == found
    for name in ("environment.json", "early_stop.json", "warm_start.json"):
        (tmp_path / name).write_text(json.dumps({"a": "x" * 100}))
    assert job_dir.environment() == job_dir.early_stop() == job_dir.warm_start() == {}


def test_checkpoints_and_exports_are_found_by_their_names(tmp_path: Path) -> None:
    job_dir = JobDir(tmp_path)
    assert (job_dir.checkpoints(), job_dir.exports(), job_dir.is_one()) == ([], {}, False)
    for name in ("step-00000020", "step-100000000", ".step-00000030.node-7.tmp", "step-00000010.damaged", "step-1"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000040").write_text("no folder")
    for name in ("best/1700000000", "best/.1700000001.node-7.tmp", "final/1700000002"):
        (tmp_path / "export" / name).mkdir(parents=True)
    assert job_dir.checkpoints() == [20, 100_000_000]
    assert job_dir.exports() == {"best": {"1700000000"}, "final": {"1700000002"}}
    (tmp_path / "job.yaml").touch()
    assert job_dir.is_one()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no such file; JOBDIR is where"),
        ("", "is no mapping"),
        ("- a\n", "is no mapping"),
        ("a: [1\n", r":2: not valid YAML"),
        ("a: &x 1\nb: *x\n", r":2: an alias"),
        ("a: " + "x" * 100, "larger than"),
        ("a: " + "[1,1,1,1,1]", "more than 6 keys and values"),
    ],
)
def test_it_is_told_why_a_job_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, told: str
) -> None:
    monkeypatch.setattr(reader, "MAX_JOB_BYTES", 100)
    monkeypatch.setattr(reader, "MAX_JOB_VALUES", 6)
    if text is not None:
        (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(UserError, match=told):
        JobDir(tmp_path).job()
    assert JobDir(tmp_path).history().job == {}


TEXTS = st.text(max_size=8) | st.sampled_from(["1e-3", "0o17", "1:30", "yes", "NO", "~", "1.", ".5", "0x1F", "", "<<"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, PLAIN, max_size=4))
def test_parameters_are_read_as_they_were_written_by_both_versions_of_yaml(params: dict[str, Any]) -> None:
    job = {"params": params}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(dump_yaml(job))
        assert JobDir(Path(folder)).job().value == yaml.safe_load(dump_yaml(job)) == job

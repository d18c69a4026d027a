"""overhead.py runs end to end: every way to train that it compares, on a few steps."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program

SCRIPT = REPOSITORY / "benchmarks" / "overhead.py"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]
WAYS = {
    "hpc_train",
    "plain Horovod, default flags",
    "plain Horovod, the same flags",
    "plain loop, no allreduce",
    "ranks that exchange nothing",
    "Keras fit",
    "tf.distribute, MultiWorkerMirrored",
}
TARGETS = 5


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], Path, str]:
    """Records, folder of results and printed text of one run."""
    folder = tmp_path_factory.mktemp("overhead")
    program = [sys.executable, str(SCRIPT), "--quick", "--oversubscribe", "--out", "out", "--dir", str(folder)]
    done = run_program(program, folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in folder.iterdir()] == ["out"], "data was left behind"
    lines = (folder / "out" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], folder / "out", done.stdout


def test_all_ways_are_measured_and_train(quick_run):
    records, _, _ = quick_run
    assert {record["config"]["way"] for record in records} == WAYS
    for record in records:
        assert list(record) == FIELDS
        low, high = record["spread"]
        assert 0 < low <= record["value"] <= high
        assert record["config"]["last_loss"] < record["config"]["first_loss"]
        assert (record["baseline"] is None) == (record["ratio"] is None)


def test_ours_is_compared_with_each_of_them(quick_run):
    records, _, _ = quick_run
    compared = {record["baseline"] for record in records if record["config"]["way"] == "hpc_train"} - {None}
    assert {name.rpartition(", ")[0] for name in compared} == WAYS
    assert "hpc_train, 1 rank" in compared  # weak scaling


def test_both_reports_and_the_text_have_all_targets(quick_run):
    _, folder, text = quick_run
    assert text.count("≥") >= TARGETS
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text()
        assert "A quick run" in page
        assert page.count("≥") >= TARGETS
        for words in (*WAYS, "Weak scaling", "How it was measured"):
            assert words in page
        for private in (socket.gethostname(), str(REPOSITORY), str(Path.home()), sys.prefix, str(folder)):
            assert private not in page

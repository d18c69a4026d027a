"""overhead.py runs end to end with some of the ways that it compares, on a few steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import LIMIT_SECS, REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from peers.measurement import read_measurements
from peers.models import MLP, write_data
from support.launch import here

SCRIPT = REPOSITORY / "benchmarks" / "overhead.py"
OURS, SAME, DISTRIBUTE = "hpc_train", "plain Horovod, the same flags", "tf.distribute, MultiWorkerMirrored"


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], Path, str]:
    """Records, folder of results and printed text of one run."""
    folder = tmp_path_factory.mktemp("overhead")
    program = [sys.executable, str(SCRIPT), "--quick", "--oversubscribe", "--out", "out", "--dir", str(folder)]
    some = ["--models", "mlp", "--ranks", "2", "--peers", "same-flags", "distribute"]
    done = run_program([*program, *some], folder, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out" not in done.stderr, done.stderr
    assert [path.name for path in folder.iterdir()] == ["out"], "data was left behind"
    lines = (folder / "out" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], folder / "out", done.stdout


def test_all_ways_are_measured_and_train_and_ours_is_compared_with_each(quick_run):
    records, _, _ = quick_run
    assert {record["config"]["way"] for record in records} == {OURS, SAME, DISTRIBUTE}
    for record in records:
        assert record["config"]["last_loss"] < record["config"]["first_loss"]
    compared = {record["baseline"] for record in records if record["config"]["way"] == OURS}
    assert compared == {f"{SAME}, 2 ranks", f"{DISTRIBUTE}, 2 ranks"}


def test_report_and_text_have_all_targets(quick_run):
    _, folder, text = quick_run
    page = (folder / "report.md").read_text()
    assert text.count("≥") >= 5
    assert page.count("≥") >= 5
    assert "A quick run" in page
    assert "How it was measured" in page


def test_ranks_without_an_allreduce_measure_at_once(tmp_path: Path):
    write_data(tmp_path, [MLP], 512)
    words = ["--model", MLP, "--folder", str(tmp_path), "--warm-up", "1", "--steps", "3", "--out", str(tmp_path)]
    here()(2, ["-m", "peers.plain_program", *words, "--alone"], tmp_path, LIMIT_SECS)
    assert [read_measurements(tmp_path / f"rank-{rank}.json")[0].steps for rank in (0, 1)] == [3, 3]

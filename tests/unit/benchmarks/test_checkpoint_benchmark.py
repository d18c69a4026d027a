"""The checkpoint benchmark runs end to end, says the same in JSON and on its page, and leaves nothing behind."""

from __future__ import annotations

import itertools
import json
import socket
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program

BENCHMARKS = REPOSITORY / "benchmarks"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]
SIZES = ("1 MB", "67 MB", "1 GB")
BASELINES = {
    "stall": {
        "memcpy",
        "memcpy by variable",
        "tf.train.Checkpoint",
        "tf.train.Checkpoint async",
        "Keras save_weights",
        "Keras save",
    },
    "stall and next step": {"no save", "tf.train.Checkpoint async"},
    "write": {"write and fsync", "sha256", "TF write and fsync"},
    "restore": {"tf.train.Checkpoint.read", "Keras load_weights"},
}
TARGETS = ("≤ 2 x memcpy of the state", "≤ 0.5 x Keras save_weights", "≤ 10%")


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], str, str]:
    """Records, page and printed text of one run."""
    folder = tmp_path_factory.mktemp("benchmark")
    files = ["--json", str(folder / "out.json"), "--out", str(folder / "out"), "--dir", str(folder)]
    program = [sys.executable, str(BENCHMARKS / "checkpoint.py"), "--quick", *files]
    done = run_program(program, folder, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["out", "out.json"], "checkpoints were left behind"
    assert (folder / "out.json").read_text() == (folder / "out" / "records.jsonl").read_text()
    records = [json.loads(line) for line in (folder / "out.json").read_text().splitlines()]
    return records, (folder / "out" / "report.html").read_text(), done.stdout


def test_records_have_the_common_fields(quick_run):
    records, _, _ = quick_run
    for record in records:
        assert list(record) == FIELDS
        low, high = record["spread"]
        assert low <= record["value"] <= high
        assert record["repeats"] >= 2
        assert (record["baseline"] is None) == (record["ratio"] is None)
    keys = [(record["case"], record["baseline"]) for record in records]
    assert len(keys) == len(set(keys))


def test_ours_is_compared_with_each_baseline_at_each_size(quick_run):
    records, _, _ = quick_run
    values = {record["case"]: record["value"] for record in records}
    for size, what in itertools.product(SIZES, BASELINES):
        compared = {r["baseline"]: r for r in records if r["case"] == f"{size} {what}, hpc_train"}
        assert set(compared) == BASELINES[what]
        for baseline, record in compared.items():
            assert record["ratio"] == pytest.approx(record["value"] / values[f"{size} {what}, {baseline}"])


def test_saves_were_in_flight_while_it_trained(quick_run):
    records, _, _ = quick_run
    steps = {record["config"]["way"]: record for record in records if record["config"]["what"] == "steps"}
    idle = {"no saves", "no saves, another process busy"}
    assert set(steps) == idle | {"a save in flight", "a save in flight and stalls"}
    assert all(steps[way]["config"]["saves"] == 0 for way in idle)
    assert steps["a save in flight"]["config"]["saves"] >= 3, "one a run at least"
    for way in ("a save in flight", "a save in flight and stalls"):
        assert steps[way]["ratio"] == pytest.approx(steps[way]["value"] / steps["no saves"]["value"])
    assert steps["a save in flight and stalls"]["value"] < steps["a save in flight"]["value"]


def test_page_and_text_name_each_target_and_nothing_of_the_machine(quick_run):
    _, page, text = quick_run
    for target in TARGETS:
        assert target in page
        assert target in text
    for private in (socket.gethostname(), str(REPOSITORY), str(Path.home()), sys.prefix):
        assert private not in page
    assert "src=" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_target_is_missed_where_one_size_misses_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from checkpoints.cases import Settings
    from checkpoints.models import Size
    from checkpoints.results import Results, StepRates
    from checkpoints.targets import targets
    from support.timing import Rates

    def rates(secs: float) -> Rates:
        return Rates((1 / secs,) * 2, (secs,) * 2)

    results = Results()
    for size, ours in (("67 MB", 0.02), ("1 GB", 0.0201)):
        found = {"hpc_train": rates(ours), "memcpy": rates(0.01), "Keras save_weights": rates(0.041)}
        results.add(size, "stall", found, nbytes=1)
    results.steps.append(StepRates("67 MB", alone=(10.0,), writing=(9.01,), saving=(8.0,), beside=(9.5,), saves=1))
    sizes = tuple(Size(name, 1, 1, 1, 1) for name in ("67 MB", "1 GB"))
    memcpy, keras, steps = targets(results, Settings(sizes, "67 MB", 1.0, 1))
    assert [ok for _, _, ok in memcpy.measured] == [True, False]
    assert not memcpy.reached
    assert keras.reached and [part for part, _, _ in keras.measured] == ["67 MB"]
    assert steps.reached and steps.measured[0][1] == "9.9%"

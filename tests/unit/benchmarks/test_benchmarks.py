"""The input benchmark runs end to end, says the same in JSON and on its page, and times in turns."""

from __future__ import annotations

import importlib.util
import itertools
import json
import socket
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program

BENCHMARKS = REPOSITORY / "benchmarks"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]
ROWS = ("784 B", "3 KB", "150 KB")
ORDERS = ("none", "block", "global")
LAYOUTS = ("contiguous", "chunked", "gzip", "lzf", *(("blosc",) if importlib.util.find_spec("hdf5plugin") else ()))
TARGETS = (
    "≥ 0.7 x memcpy",
    "≥ 0.35 x memcpy",
    "≥ 0.25 x memcpy",
    "≥ 5 x TFRecord",
    "≤ 1.2 x the time of zlib",
    "≥ 1.6 x one thread",
    "≤ 1% of the step",
)


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], str, str]:
    """Records, page and printed text of one run."""
    folder = tmp_path_factory.mktemp("benchmark")
    files = ["--json", str(folder / "out.json"), "--out", str(folder / "out"), "--folder", str(folder)]
    program = [sys.executable, str(BENCHMARKS / "input_pipeline.py"), "--quick", *files]
    done = run_program(program, folder, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["out", "out.json"], "data was left behind"
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


def test_all_cases_are_there(quick_run):
    records, _, _ = quick_run
    measured = {
        (config["rows"], config["layout"], config["order"], config["way"], record["baseline"])
        for record in records
        if (config := record["config"]).get("cache") == "warm"
    }
    for rows, layout, order, way in itertools.product(ROWS, LAYOUTS, ORDERS, ("reader", "tf.data")):
        assert (rows, layout, order, way, "memcpy") in measured
    for rows, order in itertools.product(ROWS, ORDERS):
        assert (rows, "contiguous", order, "tf.data", "TFRecord") in measured
    for rows in ROWS:
        assert (rows, "contiguous", "global", "reader", "np.take") in measured
        assert (rows, "contiguous", "global", "reader", "h5py fancy index") in measured
        assert (rows, "contiguous", "none", "reader", "h5py slices") in measured
        assert (rows, "contiguous", "none", "tf.data", "from_generator by row") in measured
        assert (rows, "contiguous", "none", "tf.data", "from_generator by batch") in measured
        assert (rows, "gzip", "none", "reader", "zlib") in measured
        assert (rows, "gzip", "none", "reader", "1 thread") in measured
    steps = {record["case"] for record in records if "training step" in record["case"]}
    assert steps == {f"{order} training step, {what}" for order in ORDERS for what in ("wait for input", "time")}


def test_cold_cases_are_measured_or_the_reason_is_given(quick_run):
    records, page, _ = quick_run
    cold = [record for record in records if record["config"].get("cache") == "cold"]
    assert cold or "Cold page cache, 784 B: not measured" in page


def test_page_and_text_name_each_target_and_nothing_of_the_machine(quick_run):
    _, page, text = quick_run
    for target in TARGETS:
        assert target in page
        assert target in text
    for private in (socket.gethostname(), str(REPOSITORY), str(Path.home()), sys.prefix):
        assert private not in page
    assert "src=" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_competitors_take_turns_there_and_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from support.timing import Competitor, interleave

    order = []

    def run(name: str) -> int:
        order.append(name)
        return 1

    rates = interleave([Competitor(name, lambda name=name: run(name)) for name in "AB"], rounds=2)
    assert "".join(order) == "AB" + "ABBA" * 2
    assert {name: len(rate.per_sec) for name, rate in rates.items()} == {"A": 4, "B": 4}

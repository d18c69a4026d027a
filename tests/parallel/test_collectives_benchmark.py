"""The collectives benchmark runs end to end, and ends where a sum is wrong."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from tests.support import LIMIT_SECS, REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from support.launch import Ranks

BENCHMARKS = REPOSITORY / "benchmarks"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]
QUICK_SIZES = {4, 4096, 1 << 20}
OPERATIONS = {"allreduce", "put"}


def collectives(folder: Path, *words: str, timeout: float = 180):
    program = [sys.executable, str(BENCHMARKS / "collectives.py"), "--quick", "--ranks", "2", "--oversubscribe"]
    return run_program([*program, "--out", str(folder / "out"), *words], folder, timeout=timeout)


def read(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "out" / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], str, str]:
    """Records, page and printed text of one run."""
    folder = tmp_path_factory.mktemp("collectives")
    done = collectives(folder, "--operations", *sorted(OPERATIONS), "--places", "node")
    assert done.returncode == 0, done.stdout + done.stderr
    return read(folder), (folder / "out" / "report.md").read_text(), done.stdout


def test_each_operation_is_measured_at_each_size(quick_run):
    records, _, _ = quick_run
    places: dict[str, set[str]] = {}
    for record in records:
        assert list(record) == FIELDS
        assert record["spread"][0] <= record["value"] <= record["spread"][1]
        assert (record["baseline"] is None) == (record["ratio"] is None)
        places.setdefault(record["config"]["place"], set()).add(record["config"]["operation"])
    assert places == {"one node": OPERATIONS}
    for operation in OPERATIONS:
        assert {r["config"]["bytes"] for r in records if r["config"]["operation"] == operation} == QUICK_SIZES


def test_horovod_is_compared_with_raw_mpi_and_memcpy(quick_run):
    records, _, _ = quick_run
    compared = {(record["config"]["way"], record["baseline"]) for record in records}
    for way in ("Horovod, one tensor", "Horovod, group"):
        assert {(way, "MPI_Allreduce"), (way, "memcpy")} <= compared
    for way in ("hpc_train's window", "Win.Allocate_shared"):
        assert {(way, "Win.Allocate"), (way, "memcpy")} <= compared


def test_terminal_and_page_have_the_columns_and_nothing_of_the_machine(quick_run):
    _, page, printed = quick_run
    for column in ("size", "count", "type", "algbw", "busbw", "#wrong"):
        assert column in printed
    for column in ("time, µs", "algbw, GB/s", "x MPI\\_Allreduce"):
        assert column in page
    assert "raw MPI\\_Allreduce from 1 MiB on" in page
    assert socket.gethostname() not in page
    assert "No GPU took part" in page


def test_a_wrong_sum_ends_the_run(tmp_path):
    """Rank 1 sends a number that it should not."""
    way = "Horovod, group, mean"
    program = (
        "import numpy as np, collective.program as program\n"
        "right, all_ways = program.pattern, program.Exchanges.allreduce\n"
        "program.pattern = lambda count, rank: right(count, rank) + np.float32((rank == 2) * (np.arange(count) == 5))\n"
        f"program.Exchanges.allreduce = lambda self: [way for way in all_ways(self) if way.name == {way!r}]\n"
        "program.main()\n"
    )
    words = ["--operations", "allreduce", "--sizes", "64", "--rounds", "1", "--repeat-secs", "0.001", "--out", "told"]
    (tmp_path / "broken.py").write_text(program)
    with (
        pytest.raises(RuntimeError, match=f"{way}: numbers that are wrong: "),
        Ranks(2, ["broken.py", *words], tmp_path) as ranks,
    ):
        ranks.wait(LIMIT_SECS)
    assert "ways" not in (tmp_path / "told").read_text()


def test_more_ranks_than_slots_and_other_mistakes_are_told_before_anything_runs(tmp_path):
    program = [sys.executable, str(BENCHMARKS / "collectives.py"), "--out", str(tmp_path / "out")]
    for words, said in (
        (["--ranks", "4000"], "--oversubscribe"),
        (["--begin", "64K", "--end", "4"], "the end is before the beginning"),
        (["--set", "MALLOC"], "give NAME=VALUE"),
    ):
        done = run_program([*program, *words], tmp_path, timeout=600)
        assert done.returncode == 2, done.stdout + done.stderr
        assert said in done.stderr
    assert not (tmp_path / "out").exists()

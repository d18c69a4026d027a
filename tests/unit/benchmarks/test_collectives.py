"""The collectives benchmark: sizes, places, bandwidths, what counts as wrong, and what the report makes of it."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import collectives
from collective.page import BUS_SHARE, header, lines, make_page, records, targets
from collective.plan import (
    ALL_NODES,
    FULL,
    GROUP,
    MEMCPY,
    NEW_MEMORY,
    ONE_TENSOR,
    OPERATIONS,
    Run,
    bus_factor,
    default_places,
    nodes_of,
    parse_size,
    runs,
    sizes_between,
)
from collective.rank import missing_room, pattern, wrong
from scale.network import ACROSS_NODES, ONE_NODE, OVER_TCP, RAW
from support.records import Found
from support.results import Results
from support.usage import UsageError

ABOUT = {"nodes": 1, "ranks_per_node": 2, "device": "CPU", "nccl": False, "settings": {}}
RUN = Run(ONE_NODE, 2, ("allreduce",))


def told(raw: float, one: float, group: float, memcpy: float) -> dict:
    """Ways as the ranks tell them, of four repeats that vary by a tenth."""
    times = {MEMCPY: memcpy, RAW: raw, NEW_MEMORY: raw, ONE_TENSOR: one, GROUP: group}
    return {way: {"secs": [secs, 1.1 * secs, secs, 0.9 * secs], "iterations": 3} for way, secs in times.items()}


def records_of(size: int, *times: float, about: dict = ABOUT) -> list:
    return list(records(RUN, about, "allreduce", size, told(*times)))


@given(st.integers(1, 1000), st.sampled_from([("", 1), ("K", 1 << 10), ("m", 1 << 20), ("G", 1 << 30)]))
def test_sizes_are_read_as_nccl_tests_reads_them(number, unit):
    text, scale = unit
    if number * scale % 4:
        with pytest.raises(ValueError, match="float32"):
            parse_size(f"{number}{text}")
    else:
        assert parse_size(f"{number}{text}") == number * scale


@pytest.mark.parametrize("text", ["", "K", "0", "-4", "4.5K", "1T", "four"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@given(st.integers(1, 1000), st.integers(0, 10**6), st.integers(2, 16))
def test_sizes_grow_by_the_factor_and_stay_within(begin, more, factor):
    found = sizes_between(begin, begin + more, factor)
    assert found[0] == begin and found[-1] <= begin + more < factor * found[-1]
    assert all(later == factor * earlier for earlier, later in pairwise(found))


def test_a_factor_of_one_and_an_end_before_the_beginning_are_refused():
    with pytest.raises(ValueError, match="factor of 1"):
        sizes_between(4, 64, 1)
    with pytest.raises(ValueError, match="before the beginning"):
        sizes_between(64, 4, 2)


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert bus_factor("allreduce", 2) == 1
    assert bus_factor("allreduce", 8) == pytest.approx(1.75)
    assert {bus_factor(operation, 8) for operation in OPERATIONS[1:]} == {1}


@given(st.integers(1, 100), st.integers(1, 50), st.data())
def test_every_wrong_number_is_found(count, factor, data):
    array = pattern(count, factor)
    assert wrong(array, factor) == 0
    places = data.draw(st.sets(st.integers(0, count - 1)))
    array[list(places)] += 1
    assert wrong(array, factor) == len(places)


@given(st.integers(1, 1500))
def test_sums_over_many_ranks_are_exact(ranks):
    total = np.float32(0)
    for rank in range(ranks):
        total += pattern(13, rank + 1)[-1]
    assert int(total) == 13 * ranks * (ranks + 1) // 2


def test_too_large_a_size_is_told_with_its_need():
    assert missing_room(4, 2) is None
    assert "needs 800.3 GB of memory" in str(missing_room(50 * 10**9, 2))


def test_a_machine_of_its_own_has_one_node_and_tcp_that_stands_for_a_network():
    assert default_places(1) == ("node", "tcp")
    planned = runs(default_places(1), [2, 4], OPERATIONS, 1, 2)
    assert [(run.place, run.ranks, run.one_sided) for run in planned] == [
        (ONE_NODE, 2, False),
        (ONE_NODE, 2, True),
        (ONE_NODE, 4, False),
        (ONE_NODE, 4, True),
        (OVER_TCP, 2, False),
        (OVER_TCP, 4, False),
    ]


def test_several_nodes_are_measured_alone_between_each_other_and_all_together(monkeypatch):
    env = {"SLURM_JOB_NUM_NODES": "3", "SLURM_TASKS_PER_NODE": "4(x3)", "SLURM_NTASKS": "12"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert nodes_of() == (3, 4)
    planned = runs(default_places(3), [12], ("allreduce",), *nodes_of())
    assert [(run.place, run.ranks, run.options) for run in planned] == [
        (ONE_NODE, 4, ()),
        (ACROSS_NODES, 3, ("--map-by", "ppr:1:node")),
        (ALL_NODES, 12, ()),
    ]


def test_what_cannot_be_run_is_refused():
    with pytest.raises(UsageError, match="one rank has nobody"):
        runs(["node"], [1, 2], OPERATIONS, 1, 2)
    with pytest.raises(UsageError, match="--places nodes: there is one node only"):
        runs(["nodes"], [2], OPERATIONS, 1, 2)


def test_records_compare_bus_bandwidths_with_raw_mpi_and_with_memcpy():
    found = Found(records_of(1 << 20, 1e-3, 2e-3, 4e-3, 1e-4))
    assert found.one(way=ONE_TENSOR).value == pytest.approx((1 << 20) / 2e-3 / 1e9)
    assert found.ratio(RAW, way=ONE_TENSOR) == pytest.approx(0.5)
    assert found.ratio(MEMCPY, way=RAW) == pytest.approx(0.1)
    assert found.ratio(RAW, way=MEMCPY) is None


def test_the_terminal_has_the_columns_of_nccl_tests():
    printed = list(lines(records_of(1 << 20, 1e-3, 2e-3, 4e-3, 1e-4), 200))
    for name in ("size", "count", "type", "time us", "algbw", "busbw", "#wrong"):
        assert name in header(200)
    assert len(printed) == 5
    one = next(line for line in printed if ONE_TENSOR in line)
    assert one.split()[:4] == ["1048576", "262144", "float32", "allreduce"]
    assert one.split()[-6:] == ["2000.00", "0.524", "0.524", "0.500", "0.05", "0"]
    assert {len(line) for line in printed} == {len(header(200))}
    narrow = [header(80), *lines(records_of(1 << 33, 1.0, 2.0, 4.0, 0.1), 80)]
    assert len({len(line) for line in narrow}) == 1 and len(narrow[0]) <= 80
    assert narrow[0].split() == ["size", "operation", "way", "time", "us", "busbw", "x", "raw", "#wrong"]


@pytest.mark.parametrize(("one", "reached"), [(0.99e-3 / BUS_SHARE, True), (1.01e-3 / BUS_SHARE, False)])
def test_the_target_looks_at_the_lowest_ratio_from_1_mib_on(one, reached):
    found = records_of(1 << 18, 1e-3, 9e-3, 9e-3, 1e-4)  # too small to count
    found += records_of(1 << 20, 1e-3, 1e-3, 1e-3, 1e-4) + records_of(1 << 24, 1e-3, one, 1e-3, 1e-4)
    [target] = targets(Found(found))
    assert target.reached is reached
    assert "at 16 MiB" in str(target)
    assert not targets(Found([]))[0].reached


def test_the_report_says_what_bounds_horovod_and_how_well_the_fit_does():
    found = []
    for size in FULL.sizes:
        found += records_of(size, 1e-5 + size / 4e9, 1e-4 + size / 2e9, 1e-4 + size / 1e9, size / 1e10)
    page = make_page(found, quick=False)
    titles = [section.title for section in page.sections]
    assert titles == [
        f"Allreduce, {ONE_NODE}, 2 ranks",
        f"What bounds Horovod, {ONE_NODE}, 2 ranks",
        "Latency and bandwidth",
    ]
    assert any("GB/s" in text for text in page.sections[-1].text)


def test_a_report_of_nothing_and_of_gpus_says_so():
    assert make_page([], quick=False).sections == []
    about = {**ABOUT, "device": "NVIDIA H100 0", "nccl": True}
    page = make_page(records_of(4, 1e-5, 1e-4, 1e-4, 1e-6, about=about), quick=True)
    assert any("NVIDIA H100" in text and "NCCL" in text for text in page.summary)


def line(operation: str, size: int) -> dict:
    return {"operation": operation, "bytes": size, "ways": told(1e-5, 1e-5, 1e-5, 1e-6)}


class FakeRanks:
    """Writes what ranks would, then fails with `error`."""

    def __init__(self, arguments, error: str) -> None:
        self._out, self._error, self.running = arguments[arguments.index("--out") + 1], error, False

    def __enter__(self):
        sizes = [line("allreduce", 4)] if self._error else [line("allreduce", size) for size in (4, 4096, 1 << 20)]
        with open(self._out, "w") as file:
            file.writelines(json.dumps(one) + "\n" for one in [{"about": ABOUT}, *sizes])
        return self

    def __exit__(self, *_):
        pass

    def wait(self, _):
        if self._error:
            raise RuntimeError(self._error)


def run_script(monkeypatch, folder, error: str, *words: str) -> int:
    monkeypatch.setattr(Run, "start", lambda self, arguments, *_: FakeRanks(arguments, error))
    monkeypatch.setattr(collectives, "check_mpirun", lambda: None)
    always = ["--quick", "--ranks", "2", "--oversubscribe", "--places", "node", "--operations", "allreduce"]
    monkeypatch.setattr(sys, "argv", ["collectives.py", "--out", str(folder), *always, *words])
    return collectives.main()


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 1)])
def test_what_ranks_measured_before_they_failed_is_kept(monkeypatch, tmp_path, strict, code):
    error = "mpirun -np 2 python: code 1\nWrongResultError: numbers that are wrong: 3"
    assert run_script(monkeypatch, tmp_path, error, *strict) == code
    left_out = json.loads((tmp_path / "run.json").read_text())["left_out"]
    assert list(left_out.values()) == ["mpirun: code 1; WrongResultError: numbers that are wrong: 3"]
    kept = [json.loads(one)["config"]["bytes"] for one in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert set(kept) == {4}
    assert run_script(monkeypatch, tmp_path, "") == 0  # a quick run begins anew
    kept = [json.loads(one)["config"]["bytes"] for one in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert set(kept) == {4, 4096, 1 << 20}


def test_what_a_user_has_to_mend_is_an_error(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match=r"^--gpu: no NCCL$"):
        run_script(monkeypatch, tmp_path, "mpirun a\nhpc-train: error: --gpu: no NCCL")


def test_horovod_started_again_leaves_the_cores_of_the_process_as_they_are(monkeypatch):
    from collective.program import HorovodSwitch

    cores = [{0, 1, 2}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cores[-1]))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, wanted: cores.append(set(wanted)))
    hvd = SimpleNamespace(init=lambda comm: cores.append({0}), shutdown=lambda: None)  # as horovod#2804 tells
    switch = HorovodSwitch(SimpleNamespace(horovod=lambda: hvd, comm=SimpleNamespace(Barrier=lambda: None)))
    switch.turn(False)
    switch.turn(True)
    assert cores == [{0, 1, 2}, {0}, {0, 1, 2}]


def test_a_file_is_followed_line_by_line(monkeypatch, tmp_path):
    path = tmp_path / "told.jsonl"
    monkeypatch.setattr(collectives, "show", lambda run, operation, nbytes, told, results: shown.append(nbytes))
    shown: list[int] = []
    with Results(tmp_path / "out", "collectives", {}) as results:
        collectives.keep(RUN, path, results)
        whole = "".join(json.dumps(one) + "\n" for one in [{"about": ABOUT}, line("allreduce", 4)])
        for end in (len(whole) - 9, len(whole), len(whole)):
            path.write_text((whole + json.dumps(line("allreduce", 16)))[:end])
            collectives.keep(RUN, path, results)
        assert shown == [4]

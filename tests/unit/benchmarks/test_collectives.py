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
from collective.arrays import missing_room, pattern, wrong
from collective.page import make_page
from collective.places import ALL_NODES, Run, default_places, nodes_of, runs
from collective.results import HEADER, Found, lines, records_of, unit_of
from collective.settings import FULL, QUICK
from collective.targets import BUS_SHARE, targets
from collective.told import Follower
from collective.ways import GROUP, MEMCPY, NEW_MEMORY, ONE_TENSOR, OPERATIONS, bus_factor, parse_size, sizes_between
from scale_model.measured import ACROSS_NODES, ONE_NODE, OVER_TCP, RAW
from support.results import ResultsFolder
from support.usage import UsageError

ABOUT = {"nodes": 1, "ranks_per_node": 2, "device": "CPU", "nccl": False, "settings": {}}
RUN = Run(ONE_NODE, 2, ("allreduce",))


def told(raw: float, one: float, group: float, memcpy: float) -> dict:
    """Ways as the ranks tell them, of four repeats that vary by a tenth."""
    times = {MEMCPY: memcpy, RAW: raw, NEW_MEMORY: raw, ONE_TENSOR: one, GROUP: group}
    return {way: {"secs": [secs, 1.1 * secs, secs, 0.9 * secs], "iterations": 3} for way, secs in times.items()}


def test_all_of_4_bytes_to_256_mib_is_measured():
    assert FULL.sizes[0] == 4 and FULL.sizes[-1] == 256 << 20
    assert 1 << 20 in FULL.sizes
    assert set(QUICK.sizes) <= set(FULL.sizes) and len(QUICK.sizes) > 1


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


def test_several_nodes_are_measured_alone_between_each_other_and_all_together():
    env = {"SLURM_JOB_NUM_NODES": "3", "SLURM_TASKS_PER_NODE": "4(x3)", "SLURM_NTASKS": "12"}
    assert nodes_of(env) == (3, 4)
    planned = runs(default_places(3), [12], ("allreduce",), *nodes_of(env))
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
    records = records_of(RUN, ABOUT, "allreduce", 1 << 20, told(1e-3, 2e-3, 4e-3, 1e-4))
    found = Found(records)
    key = (ONE_NODE, 2, "allreduce", 1 << 20)
    assert found.get(*key, ONE_TENSOR).value == pytest.approx((1 << 20) / 2e-3 / 1e9)
    assert found.ratio(*key, ONE_TENSOR, RAW) == pytest.approx(0.5)
    assert found.ratio(*key, RAW, MEMCPY) == pytest.approx(0.1)
    low, high = found.get(*key, ONE_TENSOR).config["ratio_spread"]
    assert low <= 0.5 <= high
    assert all(("ratio_spread" in record.config) == (record.ratio is not None) for record in records)
    for record in records:
        assert record.spread[0] <= record.value <= record.spread[1]
        assert (record.baseline is None) == (record.ratio is None)
        json.dumps(record.config, allow_nan=False)
    assert len({(record.case, record.baseline) for record in records}) == len(records)


def test_the_terminal_has_the_columns_of_nccl_tests():
    printed = list(lines(records_of(RUN, ABOUT, "allreduce", 1 << 20, told(1e-3, 2e-3, 4e-3, 1e-4))))
    for name in ("size", "count", "type", "time us", "algbw", "busbw", "#wrong"):
        assert name in HEADER
    assert len(printed) == 5
    one = next(line for line in printed if ONE_TENSOR in line)
    assert one.split()[:4] == ["1048576", "262144", "float32", "allreduce"]
    assert one.split()[-6:] == ["2000.00", "0.524", "0.524", "0.500", "0.05", "0"]
    assert {len(line) for line in printed} == {len(HEADER)}


@pytest.mark.parametrize(("one", "reached"), [(0.99e-3 / BUS_SHARE, True), (1.01e-3 / BUS_SHARE, False)])
def test_the_target_looks_at_the_lowest_ratio_from_1_mib_on(one, reached):
    records = records_of(RUN, ABOUT, "allreduce", 1 << 18, told(1e-3, 9e-3, 9e-3, 1e-4))  # too small to count
    records += records_of(RUN, ABOUT, "allreduce", 1 << 20, told(1e-3, 1e-3, 1e-3, 1e-4))
    records += records_of(RUN, ABOUT, "allreduce", 1 << 24, told(1e-3, one, 1e-3, 1e-4))
    [target] = targets(Found(records))
    assert target.reached is reached
    assert "at 16 MiB" in str(target)
    assert not targets(Found([]))[0].reached


def test_the_report_says_what_bounds_horovod_and_how_well_the_fit_does():
    records = []
    for size in FULL.sizes:
        ways = told(1e-5 + size / 4e9, 1e-4 + size / 2e9, 1e-4 + size / 1e9, size / 1e10)
        records += records_of(RUN, ABOUT, "allreduce", size, ways)
    page = make_page(records, quick=False)
    titles = [section.title for section in page.sections]
    assert titles == [
        f"Allreduce, {ONE_NODE}, 2 ranks",
        f"What bounds Horovod, {ONE_NODE}, 2 ranks",
        "Latency and bandwidth",
    ]
    errors = [float(row[-1].rstrip("%")) for row in page.sections[-1].tables[0].rows]
    assert len(errors) == len(FULL.sizes)
    assert max(abs(error) for error in errors) < 15
    assert any("GB/s" in text for text in page.sections[-1].paragraphs)


def test_a_report_of_nothing_and_of_gpus_says_so():
    assert make_page([], quick=False).sections == []
    about = {**ABOUT, "device": "NVIDIA H100 0", "nccl": True}
    page = make_page(records_of(RUN, about, "allreduce", 4, told(1e-5, 1e-4, 1e-4, 1e-6)), quick=True)
    assert any("NVIDIA H100" in text and "NCCL" in text for text in page.summary)


@pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 1)])
def test_what_ranks_that_fail_had_left_is_noted_and_the_other_ranks_go_on(monkeypatch, tmp_path, strict, code):
    def measure(run, settings, args, env, results):
        for name, size in collectives.planned(run, settings):
            if (name, size) == ("allreduce", 4096):
                raise RuntimeError("mpirun -np 2 python: code 1\nWrongResultError: numbers that are wrong: 3")
            unit = unit_of(run, name, size)
            results.add(unit, records_of(run, ABOUT, name, size, told(1e-5, 1e-5, 1e-5, 1e-6)))

    monkeypatch.setattr(collectives, "measure", measure)
    monkeypatch.setattr(collectives, "check_mpirun", lambda: None)
    words = ["--quick", "--ranks", "2", "--oversubscribe", "--places", "node", "--operations", "allreduce", "put"]
    words += ["--strict"] if strict else []
    monkeypatch.setattr(sys, "argv", ["collectives.py", "--out", str(tmp_path / "out"), *words])
    assert collectives.main() == code
    told_of = json.loads((tmp_path / "out" / "run.json").read_text())
    assert told_of["left_out"] == {
        "allreduce, one node, 2 ranks, 4 KiB": "mpirun: code 1; WrongResultError: numbers that are wrong: 3",
        "allreduce, one node, 2 ranks, 1 MiB": "the ranks ended before: see allreduce, one node, 2 ranks, 4 KiB",
    }
    assert [unit for unit in told_of["units"] if unit.startswith("put")] == [
        f"put, one node, 2 ranks, {size}" for size in ("4 B", "4 KiB", "1 MiB")
    ]


def test_ranks_that_fail_at_the_end_are_noted_and_what_a_user_has_to_mend_is_an_error(tmp_path):
    with ResultsFolder(tmp_path / "out", "collectives", {}) as results:
        for size in QUICK.sizes:
            results.add(unit_of(RUN, "allreduce", size), [])
        collectives.leave_out_rest(RUN, QUICK, RuntimeError("mpirun a: still running after 9 s"), results)
        assert results.left_out == {f"the end of allreduce, {ONE_NODE}, 2 ranks": "mpirun: still running after 9 s"}
        with pytest.raises(UsageError, match=r"^--gpu: no NCCL$"):
            collectives.leave_out_rest(RUN, QUICK, RuntimeError("mpirun a\nhpc-train: error: --gpu: no NCCL"), results)


def test_one_sided_communication_goes_through_all_operations_of_a_size_before_the_next(tmp_path):
    run = Run(ONE_NODE, 2, ("put", "get"))
    with ResultsFolder(tmp_path / "out", "collectives", {}) as results:
        results.add(unit_of(run, "put", QUICK.sizes[0]), [])
        collectives.leave_out_rest(run, QUICK, RuntimeError("mpirun a: code 1"), results)
        assert next(iter(results.left_out.items())) == (unit_of(run, "get", QUICK.sizes[0]), "mpirun: code 1")


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


def test_a_file_is_followed_line_by_line(tmp_path):
    path = tmp_path / "told.jsonl"
    follower = Follower(path)
    assert follower.new() == []
    path.write_text('{"bytes": 4}\n{"byt')
    assert follower.new() == [{"bytes": 4}]
    with open(path, "a") as file:
        file.write('es": 16}\n')
    assert follower.new() == [{"bytes": 16}]
    assert follower.new() == []


def test_units_differ_by_all_that_is_measured_apart():
    other = SimpleNamespace(place=OVER_TCP, ranks=2)
    units = {unit_of(run, name, size) for run in (RUN, other) for name in OPERATIONS for size in FULL.sizes}
    assert len(units) == 2 * len(OPERATIONS) * len(FULL.sizes)

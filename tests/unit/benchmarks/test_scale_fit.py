"""Fits find what the times were made of, and say how far off they are."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from scale.network import (
    ACROSS_NODES,
    HOROVOD,
    ONE_NODE,
    OVER_TCP,
    RAW,
    Link,
    Network,
    allreduce_secs,
    fit,
    fit_link,
    fit_ring,
    network_of,
    ring_secs,
)

SIZES = [4.0**k for k in range(1, 15)]
latencies, bytes_secs = st.floats(1e-7, 1e-3), st.floats(1e-11, 1e-8)


@given(latencies, bytes_secs)
def test_a_link_is_found_again(latency, per_byte):
    link = fit_link(SIZES, [latency + size * per_byte for size in SIZES])
    assert link.latency_secs == pytest.approx(latency, rel=1e-6)
    assert link.secs_per_byte == pytest.approx(per_byte, rel=1e-6)
    assert link.error < 1e-6


@given(latencies, bytes_secs, st.integers(0, 2**32 - 1))
def test_noise_of_a_few_percent_moves_the_fit_by_a_few_percent(latency, per_byte, seed):
    noise = np.random.default_rng(seed).uniform(0.95, 1.05, len(SIZES))
    times = [(latency + size * per_byte) * factor for size, factor in zip(SIZES, noise, strict=True)]
    link = fit_link(SIZES, times)
    assert link.error < 0.06
    for size in SIZES:
        assert link.latency_secs + size * link.secs_per_byte == pytest.approx(latency + size * per_byte, rel=0.15)


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=20))
def test_coefficients_are_never_negative(times):
    values, _ = fit(np.stack([np.ones(len(times)), np.arange(len(times))], axis=1), np.array(times))
    assert min(values) >= 0


def test_times_that_fall_with_the_size_have_no_time_a_byte():
    link = fit_link([1.0, 10.0, 100.0], [3.0, 2.0, 1.0])
    assert link.secs_per_byte == 0
    assert link.latency_secs > 0


@given(latencies, bytes_secs, st.floats(1e-6, 1e-3))
def test_several_counts_tell_latency_and_agreement_apart(latency, per_byte, agreement):
    network = Network(Link(latency, per_byte, 0.0, agreement), Link(0, 0), 64)
    points = [(n, size) for n in (2, 4, 8, 16) for size in SIZES]
    link = fit_ring(
        [n for n, _ in points],
        [size for _, size in points],
        [allreduce_secs("ring", network, n, size) for n, size in points],
    )
    for n, size in points:
        again = Network(link, Link(0, 0), 64)
        assert allreduce_secs("ring", again, n, size) == pytest.approx(
            allreduce_secs("ring", network, n, size), rel=1e-4
        )


@given(latencies, bytes_secs, st.floats(1e-6, 1e-3))
def test_one_count_tells_them_apart_where_the_latency_is_known(latency, per_byte, agreement):
    times = [ring_secs(Link(latency, per_byte), 2, size) + agreement for size in SIZES]
    link = fit_ring([2] * len(SIZES), SIZES, times, latency)
    assert link.secs_per_byte == pytest.approx(per_byte, rel=1e-6)
    assert link.agreement_secs == pytest.approx(agreement, rel=1e-6)


def records(place: str, link: Link, ranks: int, raw_latency: float) -> list[SimpleNamespace]:
    """As a run of collectives.py would leave them, on a network without noise."""
    made = []
    for size in SIZES:
        horovod = allreduce_secs("ring", Network(link, link, 64), ranks, size)
        for way, secs in ((HOROVOD[0], horovod), (RAW, raw_latency * np.log2(ranks) + size * link.secs_per_byte)):
            config = {"operation": "allreduce", "place": place, "way": way, "bytes": size, "secs": secs}
            made += [SimpleNamespace(benchmark="collectives", ranks=ranks, config=config)] * 2  # one a baseline
    return made


def test_network_of_a_run_has_both_links():
    inside, between = Link(1e-6, 1e-10, 0.0, 5e-5), Link(2e-5, 1e-9, 0.0, 2e-4)
    run = records(ONE_NODE, inside, 4, 1e-6) + records(ACROSS_NODES, between, 2, 2e-5)
    found = network_of(run, ranks_per_node=4)
    for link, wanted in ((found.inside, inside), (found.between, between)):
        assert link.secs_per_byte == pytest.approx(wanted.secs_per_byte, rel=0.02)
        assert link.agreement_secs == pytest.approx(wanted.agreement_secs, rel=0.05)
        assert link.latency_secs == pytest.approx(wanted.latency_secs, rel=0.2)
    assert "GB/s" in found.words


def test_what_stands_for_the_link_between_nodes_is_told():
    inside, tcp = Link(1e-6, 1e-10, 0.0, 5e-5), Link(2e-5, 1e-9, 0.0, 2e-4)
    alone = network_of(records(ONE_NODE, inside, 2, 1e-6), 2)
    assert alone.between == alone.inside
    assert "Nothing was measured between nodes" in alone.words
    stood_in = network_of(records(ONE_NODE, inside, 2, 1e-6) + records(OVER_TCP, tcp, 2, 2e-5), 2)
    assert stood_in.between_place == OVER_TCP
    assert "stands for it" in stood_in.words
    assert stood_in.between.secs_per_byte > stood_in.inside.secs_per_byte


def test_only_the_sizes_asked_for_decide_on_the_bandwidth():
    fast, slow = Link(1e-6, 1e-10), Link(1e-6, 4e-10)
    run = [r for r in records(ONE_NODE, fast, 2, 1e-6) if r.config["bytes"] < 1e6]
    run += [r for r in records(ONE_NODE, slow, 2, 1e-6) if r.config["bytes"] >= 1e6]
    assert network_of(run, 2, (1e6, 1e9)).inside.secs_per_byte == pytest.approx(4e-10, rel=0.02)


def test_records_without_allreduces_are_refused():
    with pytest.raises(ValueError, match=r"run collectives\.py first"):
        network_of([], 2)
    with pytest.raises(ValueError, match="two are needed"):
        network_of(records(ONE_NODE, Link(1e-6, 1e-10), 2, 1e-6), 2, (1e12, 1e13))

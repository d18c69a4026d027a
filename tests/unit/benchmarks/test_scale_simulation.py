"""Stragglers: without them the simulations come to the closed form, with them they cost what they must."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from scale.model import StepTimes, simulate_async, slowest_of_each

seeds = st.integers(0, 2**32 - 1)
secs = st.floats(1e-3, 1.0)


@given(secs, st.integers(1, 300), seeds)
def test_without_spread_the_slowest_is_as_all_others(median, most, seed):
    assert slowest_of_each(StepTimes(median), most, seed) == pytest.approx(np.full(most, median))


@given(secs, st.floats(0.01, 0.5), st.integers(2, 200), seeds)
def test_the_slowest_of_more_ranks_is_slower(median, sigma, most, seed):
    means = slowest_of_each(StepTimes(median, sigma), most, seed)
    assert (np.diff(means) >= 0).all()
    assert means[-1] > means[0]


@given(seeds, st.integers(1, 50), st.integers(1, 50))
def test_how_many_ranks_are_looked_at_changes_nothing(seed, some, more):
    times = StepTimes(0.1, 0.2)
    assert slowest_of_each(times, some, seed) == pytest.approx(slowest_of_each(times, some + more, seed)[:some])


def test_the_slowest_of_many_is_what_the_normal_distribution_says():
    """The mean of the highest of 100 normal numbers is 2.508 standard deviations above theirs (Tippett 1925)."""
    means = slowest_of_each(StepTimes(1.0, 1e-3), 100, seed=3, steps=4000)
    assert (means[-1] - 1) / 1e-3 == pytest.approx(2.508, abs=0.05)


def async_rate_without_stragglers(compute_secs: float, workers: int, wire_secs: float, service_secs: float) -> float:
    """What `simulate_async` comes to where all steps take the same: workers bound by themselves, or by the servers."""
    cycle = compute_secs + max(wire_secs, service_secs)
    by_servers = 1 / service_secs if service_secs else float("inf")
    return min(workers / cycle, by_servers)


@settings(max_examples=40)
@given(secs, st.integers(1, 40), st.floats(0, 0.5), st.lists(st.floats(0, 0.3), min_size=1, max_size=4), seeds)
def test_without_spread_workers_and_servers_reach_the_closed_form(compute, workers, wire, services, seed):
    found = simulate_async(StepTimes(compute), workers, wire, services, seed, steps=100)
    wanted = async_rate_without_stragglers(compute, workers, wire, max(services))
    assert found == pytest.approx(wanted, rel=0.03)


@settings(max_examples=40)
@given(secs, st.floats(0, 0.5), st.integers(1, 30), st.floats(0, 0.3), st.floats(0, 0.3), seeds)
def test_no_run_is_faster_than_its_servers_or_its_workers(compute, sigma, workers, wire, service, seed):
    times = StepTimes(compute, sigma)
    found = simulate_async(times, workers, wire, [service], seed, steps=100)
    if service:
        assert found <= 1.1 / service


def test_a_straggler_costs_asynchronous_workers_less_than_synchronous_ones():
    times, workers = StepTimes(0.1, 0.3), 32
    synchronous = workers / slowest_of_each(times, workers, seed=0)[-1]
    assert simulate_async(times, workers, 0.0, [1e-5], seed=0) > 1.3 * synchronous


def test_the_same_seed_gives_the_same_run():
    runs = [simulate_async(StepTimes(0.1, 0.2), 8, 1e-3, [1e-3, 2e-3], seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]

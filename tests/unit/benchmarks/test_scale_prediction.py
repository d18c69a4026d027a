"""Predictions keep to what they are made of, are held against what was measured, and answer how many nodes."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from scale.model import StepProfile, StepTimes, Strategy, how_many_nodes, predict
from scale.network import Link, Network, allreduce_secs

links = st.builds(Link, st.floats(0, 1e-4), st.floats(0, 1e-8), st.just(0.0), st.floats(0, 1e-3))
networks = st.builds(Network, links, links, st.integers(1, 8))
profiles = st.builds(
    StepProfile,
    st.builds(StepTimes, st.floats(1e-3, 1.0), st.floats(0, 0.3)),
    st.floats(0, 1e8),
    st.floats(1, 512),
    st.floats(0, 0.1),
)
allreduces = st.sampled_from([Strategy("ring"), Strategy("hierarchical")])
NETWORK = Network(Link(2e-6, 1e-10, 0.0, 5e-5), Link(2e-5, 1e-9, 0.0, 1e-4), 4)
PROFILE = StepProfile(StepTimes(0.1, 0.05), 8e6, examples=64)
RING = Strategy("ring")


@given(profiles, networks, allreduces)
def test_one_rank_alone_is_the_measure(profile, network, strategy):
    [one] = predict(profile, network, [1], strategy)
    assert one.efficiency == 1
    assert one.examples_per_sec == pytest.approx(profile.examples / profile.single_secs)


@given(profiles, networks, allreduces, st.lists(st.integers(2, 300), min_size=1, max_size=4))
def test_efficiency_is_a_share_of_as_many_ranks_alone(profile, network, strategy, counts):
    for point in predict(profile, network, counts, strategy):
        assert 0 < point.efficiency <= 1 + 1e-9
        alone = point.ranks * profile.examples / profile.single_secs
        assert point.examples_per_sec == pytest.approx(point.efficiency * alone)
        exchange = allreduce_secs(strategy.way, network, point.ranks, profile.gradient_bytes)
        assert point.step_secs >= (profile.single_secs + exchange) * (1 - 1e-9)


@given(profiles, networks, allreduces)
def test_weak_efficiency_falls_with_the_nodes(profile, network, strategy):
    curve = predict(profile, network, [n * network.ranks_per_node for n in (1, 2, 4, 8, 16)], strategy)
    for fewer, more in pairwise(curve):
        assert more.efficiency <= fewer.efficiency * (1 + 1e-9)


@given(profiles, networks, st.integers(2, 64))
def test_without_stragglers_it_is_the_closed_form(profile, network, ranks):
    plain = replace(profile, compute=StepTimes(profile.compute.median_secs))
    [found] = predict(plain, network, [ranks], RING)
    exchange = allreduce_secs("ring", network, ranks, profile.gradient_bytes)
    assert found.step_secs == pytest.approx(plain.compute.median_secs + plain.fixed_secs + exchange)


@given(profiles, networks, st.integers(2, 64))
def test_strong_scaling_is_no_more_efficient_than_weak(profile, network, ranks):
    [weak], [strong] = (predict(profile, network, [ranks], RING, strong) for strong in (False, True))
    assert strong.efficiency <= weak.efficiency * (1 + 1e-9)


@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(1, 20))
def test_servers_count_as_ranks_that_train_nothing(servers, workers):
    free = Network(Link(0, 0), Link(0, 0), 4)
    strategy = Strategy("parameter server", servers)
    [found] = predict(replace(PROFILE, compute=StepTimes(0.1)), free, [servers + workers], strategy)
    assert found.efficiency == pytest.approx(workers / (servers + workers), rel=0.02)


def test_more_servers_help_where_one_is_the_bottleneck_but_not_on_the_same_node():
    strategies = [Strategy("parameter server", k) for k in (1, 4)]
    for network, gain in ((NETWORK.with_ranks_per_node(1), 4.0), (NETWORK, 1.0)):
        one, four = (predict(PROFILE, network, [64], strategy)[0].examples_per_sec for strategy in strategies)
        assert four / one == pytest.approx(gain, rel=0.05)


@settings(max_examples=30)
@given(profiles, networks, allreduces, st.floats(0.05, 1))
def test_the_answer_reaches_what_was_wanted_and_one_more_node_does_not(profile, network, strategy, wanted):
    answer = how_many_nodes(profile, network, strategy, wanted, most_ranks=256)
    if answer.found is None:
        assert answer.best.efficiency < wanted
        assert "no number of nodes" in str(answer)
        return
    assert answer.found.efficiency >= wanted
    assert answer.found.ranks == answer.found.nodes * network.ranks_per_node
    assert str(answer).startswith(("1 node (", f"{answer.found.nodes} nodes ("))
    if not answer.at_most:
        [more] = predict(profile, network, [answer.found.ranks + network.ranks_per_node], strategy)
        assert more.efficiency < wanted + 1e-9


def test_up_to_1024_ranks_are_looked_at():
    free = Network(Link(0, 0), Link(0, 0), 4)
    answer = how_many_nodes(replace(PROFILE, compute=StepTimes(0.1)), free, RING, 0.5)
    assert (answer.found.ranks, answer.at_most) == (1024, True)
    assert str(answer) == "256 nodes (1024 ranks): efficiency 100%, 50% wanted; more were not looked at"

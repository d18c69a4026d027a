"""Costs of exchanges: they grow with bytes and ranks, keep to known bounds, and say where a hierarchy pays."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from scale.network import Link, Network, allreduce_secs, ring_secs, server_secs

links = st.builds(Link, st.floats(1e-7, 1e-3), st.floats(1e-11, 1e-8), st.just(0.0), st.floats(0, 1e-3))
networks = st.builds(Network, links, links, st.integers(1, 16))
algorithms = st.sampled_from(("ring", "hierarchical"))
ranks = st.integers(1, 1024)
sizes = st.floats(0, 1e9)


@given(algorithms, networks, ranks, sizes, sizes)
def test_more_bytes_never_take_less_time(algorithm, network, n, some, more):
    few, many = sorted((some, more))
    assert allreduce_secs(algorithm, network, n, few) <= allreduce_secs(algorithm, network, n, many)


@given(algorithms, networks, st.integers(1, 64), st.integers(1, 64), sizes)
def test_more_full_nodes_never_take_less_time(algorithm, network, some, more, nbytes):
    few, many = sorted((some * network.ranks_per_node, more * network.ranks_per_node))
    less, longer = (allreduce_secs(algorithm, network, n, nbytes) for n in (few, many))
    assert less <= longer * (1 + 1e-12)


@given(algorithms, networks, sizes)
def test_one_rank_exchanges_nothing(algorithm, network, nbytes):
    assert allreduce_secs(algorithm, network, 1, nbytes) == 0


@given(links, st.integers(2, 1024), sizes)
def test_ring_moves_no_more_than_it_must(link, n, nbytes):
    """Each rank sends and receives 2 (n - 1) / n of its bytes, and no allreduce can do with less (Patarasuk 2009)."""
    least = 2 * (n - 1) / n * nbytes * link.secs_per_byte
    assert ring_secs(link, n, nbytes) == pytest.approx(least + 2 * (n - 1) * link.latency_secs)


@given(networks, st.integers(2, 64), st.floats(0, 1e4))
def test_hierarchy_beats_the_flat_ring_where_latency_between_nodes_dominates(network, nodes, nbytes):
    if network.ranks_per_node == 1:
        network = network.with_ranks_per_node(2)
    slow = Link(100 * network.inside.latency_secs, network.inside.secs_per_byte, 0.0, network.between.agreement_secs)
    network = Network(network.inside, slow, network.ranks_per_node)
    n = nodes * network.ranks_per_node
    if nbytes * network.inside.secs_per_byte < network.inside.latency_secs:
        assert allreduce_secs("hierarchical", network, n, nbytes) < allreduce_secs("ring", network, n, nbytes)


@given(networks, st.integers(1, 16), sizes)
def test_hierarchy_is_a_ring_inside_a_node_and_with_a_rank_a_node(network, n, nbytes):
    one = network.with_ranks_per_node(n)
    for there, link in ((one, network.inside), (network.with_ranks_per_node(1), network.between)):
        ring = there.agreement_secs(n) + ring_secs(link, n, nbytes)
        assert allreduce_secs("hierarchical", there, n, nbytes) == pytest.approx(ring if n > 1 else 0)


@given(networks, st.integers(1, 8), st.integers(1, 200), st.floats(1, 1e9), st.floats(0, 1e-8))
def test_more_servers_have_less_to_do_each(network, servers, workers, nbytes, apply):
    one_each = network.with_ranks_per_node(1)
    few_wire, few_service = server_secs(one_each, servers + workers, servers, nbytes, apply)
    many_wire, many_service = server_secs(one_each, 2 * servers + workers, 2 * servers, nbytes, apply)
    assert many_service < few_service
    assert many_wire > few_wire

"""What ranks hold: their parts are the whole, and more ranks hold no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.share import Averaged
from hpc_train.planning.holdings import Choice, Holding, ModelSizes, VariableSizes, holdings, pieces, served
from tests.support import SOAK

variables = st.lists(
    st.builds(
        lambda elements, itemsize, slots: VariableSizes("v", elements, elements, itemsize, slots * itemsize),
        st.integers(0, 5000),
        st.sampled_from([2, 4, 8]),
        st.integers(0, 3),
    ),
    max_size=6,
)


def adam(elements: int = 1000, **more: object) -> ModelSizes:
    """Of one variable in float32 with two slots."""
    return ModelSizes((VariableSizes("v", elements, elements, 4, 8),), common=12, activations=500, **more)  # type: ignore


@given(variables, st.integers(1, 9))
@settings(max_examples=100 * SOAK, deadline=None)
@pytest.mark.random
def test_the_parts_of_all_servers_are_the_whole(found: list[VariableSizes], servers: int) -> None:
    parts = served(found, servers)
    assert len(parts) == servers
    assert [sum(own) for own in zip(*parts, strict=True)] == [v.elements for v in found]


@given(variables, st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=100 * SOAK, deadline=None)
@pytest.mark.random
def test_the_pieces_of_all_ranks_are_the_whole_once_for_each_model_part(
    found: list[VariableSizes], data: int, model: int
) -> None:
    kinds: list[Averaged] = ["world", "data", "alone"]
    mixed = [replace(v, averaged=kinds[n % 3], undivided=n == 3) for n, v in enumerate(found)]
    ranks = [pieces(mixed, Mesh(data, model, rank)) for rank in range(data * model)]
    for number, variable in enumerate(mixed):
        times = data * model if variable.undivided or variable.averaged == "alone" else 1
        times = model if variable.averaged == "data" and times == 1 else times
        assert sum(own[number] for own in ranks) == times * variable.elements
    sizes = ModelSizes(tuple(mixed), common=12)
    first, *others = holdings(sizes, Choice(data * model, model, shard_optimizer=True))
    slots = [sum(n * v.slot for n, v in zip(own, mixed, strict=True)) for own in ranks]
    assert first.optimizer - 12 == slots[0]
    assert [other.optimizer - 12 for other in others] == slots[1:2]


@given(variables, st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=100 * SOAK, deadline=None)
@pytest.mark.random
def test_no_option_holds_more_of_the_optimizer_than_one_rank(found: list[VariableSizes], data: int, model: int) -> None:
    sizes = ModelSizes(tuple(replace(v, averaged="data" if n % 2 else "world") for n, v in enumerate(found)))
    whole = holdings(sizes, Choice(data * model, model))
    shared = holdings(sizes, Choice(data * model, model, shard_optimizer=True))
    assert len(whole) == len(shared) == min(2, data * model)
    for one, other in zip(whole, shared, strict=True):
        assert other.optimizer <= one.optimizer
        assert (other.parameters, other.gradients) == (one.parameters, one.gradients)


def test_the_optimizer_is_an_nth_within_a_percent() -> None:
    sizes = adam(1_000_000)
    for ranks in (2, 4, 7):
        chief, other = holdings(sizes, Choice(ranks, shard_optimizer=True))
        assert chief.optimizer == pytest.approx(8e6 / ranks, rel=0.01)
        assert other.optimizer == pytest.approx(8e6 / ranks, rel=0.01)


def test_the_chief_alone_has_room_for_copies_of_what_is_the_same_on_all() -> None:
    chief, other = holdings(adam(state=100), Choice(4), process=7)
    assert chief == Holding(4000, 4000, 8012, 100, 500, 0, 4000 + 8012 + 100, 7)
    assert other == replace(chief, snapshot=0)
    assert chief.total == 4000 + 4000 + 8012 + 100 + 500 + 12112 + 7
    assert chief.on_device == 4000 + 4000 + 8012 + 100 + 500
    chief, other = holdings(adam(), Choice(2, shard_optimizer=True))
    assert other.snapshot == other.optimizer - 12, "its slots, which the chief does not have"
    alone = ModelSizes((VariableSizes("table", 2000, 1000, 4, 8, averaged="alone"),), common=12)
    chief, other = holdings(alone, Choice(2))
    assert (chief.snapshot, other.snapshot) == (12_012, 12_000)
    chief, other = holdings(alone, Choice(2), exports="whole")
    assert (chief.exported, other.exported) == (8000, 0), "an export is the whole model"
    assert (chief.on_device, chief.total) == (16_012, 16_012 + 8000 + 12_012), "it is in the host's memory"
    assert holdings(alone, Choice(2), exports="shards")[0].exported == 0, "but for its tables"
    assert holdings(adam(), Choice(2), exports="whole")[0].exported == 0, "which the chief has anyway"


def test_pieces_of_a_batch_need_a_sum_of_gradients_beside() -> None:
    (one,) = holdings(adam(), Choice(1), accumulates=True)
    assert one.gradients == 8000


def test_servers_hold_the_optimizer_and_a_mailbox_for_each_worker() -> None:
    chief, other = holdings(adam(), Choice(6, servers=2))
    assert (chief.parameters, chief.gradients, chief.optimizer) == (4000 + 3 * 1984, 6 * 1984, 2 * 1984 + 12)
    assert chief.activations is None
    assert other.optimizer == 2 * 2016 + 12, "the other server, which holds more than a worker"
    _, worker = holdings(adam(), Choice(1, servers=1))
    assert (worker.optimizer, worker.activations) == (0, 500)


def test_a_dedicated_chief_takes_no_steps() -> None:
    chief, other = holdings(adam(), Choice(3, idle=1))
    assert (chief.gradients, chief.activations) == (0, None)
    assert (other.gradients, other.activations) == (4000, 500)
    assert other.snapshot == chief.snapshot, "the first worker copies the state, too"


def test_the_line_for_the_job_file() -> None:
    plain, both, served = Choice(8), Choice(8, 2, True), Choice(8, servers=3)
    assert (plain.name, plain.keys, plain.line(plain)) == ("sync", {}, "run: {}")
    assert Choice(8, shard_optimizer=True).line(plain) == "run: {shard_optimizer: true}"
    assert both.line(plain) == "run: {mesh: {data: 4, model: 2}, shard_optimizer: true}"
    assert both.name == "mesh 4 x 2 + shard"
    assert served.line(plain) == "run: {strategy: async, parameter_servers: 3}"
    assert served.size == 11
    assert plain.line(both) == "run: {mesh: null, shard_optimizer: false}"
    assert both.line(Choice(7, idle=1)) == "run: {chief: train, mesh: {data: 4, model: 2}, shard_optimizer: true}"
    assert plain.line(served) == "run: {strategy: sync, parameter_servers: 1}"
    assert Choice(7, idle=1).name == "dedicated chief"

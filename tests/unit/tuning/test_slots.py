"""Where trials run at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.tuning.execution.machine import devices
from hpc_train.tuning.execution.slots import Node, Wanted, slots_of, slots_of_nodes


@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=64, unique=True),
    st.lists(st.integers(0, 15).map(str), max_size=8, unique=True),
    st.builds(Wanted, st.integers(1, 8), st.integers(1, 8), st.none() | st.integers(1, 4)),
    st.none() | st.integers(1, 70),
)
def test_no_two_slots_share_a_core_or_a_device(
    cores: list[int], devices: list[str], wanted: Wanted, parallel: int | None
) -> None:
    try:
        slots = slots_of(cores, devices, wanted, parallel)
    except UserError:
        assert parallel is not None or (wanted.devices or 0) > len(devices), "without `parallel` one fits at least"
        return
    assert [slot.number for slot in slots] == list(range(len(slots)))
    assert len(slots) == (parallel or len(slots)) >= 1
    given_cores = [core for slot in slots for core in slot.cores]
    assert given_cores == cores, "each is given out once"
    given_devices = [device for slot in slots for device in slot.devices]
    assert len(set(given_devices)) == len(given_devices)
    assert set(given_devices) <= set(devices)
    sizes = [len(slot.cores) for slot in slots]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert len({len(slot.devices) for slot in slots}) == 1
    if parallel is None and len(slots) > 1:
        assert min(sizes) >= wanted.ranks * wanted.cores_per_rank
    if devices:
        assert len(slots[0].devices) == min(wanted.devices or wanted.ranks, len(devices))


def test_a_machine_is_filled() -> None:
    assert len(slots_of(range(16), [], Wanted(2, 2), None)) == 4
    assert len(slots_of(range(16), ["0", "1"], Wanted(1), None)) == 2, "a GPU each"
    assert len(slots_of(range(2), [], Wanted(4), None)) == 1, "whose ranks share the cores"
    (slot,) = slots_of(range(4), ["0", "1"], Wanted(4), None)
    assert slot.devices == ("0", "1"), "which its ranks share"


@pytest.mark.parametrize(
    ("cores", "devices", "wanted", "parallel", "words"),
    [
        (
            2,
            [],
            Wanted(1),
            3,
            "trials at once: 3 trials want a core each, and this process may use 2 cores; allowed: 2",
        ),
        (
            8,
            ["0", "1"],
            Wanted(1),
            3,
            "trials at once: 3 trials of 1 GPU want 3 GPUs, and there are 2; allowed: 2",
        ),
        (8, ["0"], Wanted(1, devices=2), None, "resources.gpus_per_node: a trial wants 2 GPUs, and there are 1 here"),
        (8, ["0"], Wanted(2), 2, "trials at once: 2 trials of 2 GPUs want 4 GPUs, and there are 1; allowed: 1"),
    ],
)
def test_more_than_there_is_is_refused(
    cores: int, devices: list[str], wanted: Wanted, parallel: int | None, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        slots_of(range(cores), devices, wanted, parallel)
    assert str(caught.value).startswith(words)


@given(
    st.lists(
        st.builds(Node, st.uuids().map(str), st.integers(1, 32), st.integers(0, 4), st.none() | st.integers(1, 999)),
        min_size=1,
        max_size=4,
    ),
    st.builds(Wanted, st.integers(1, 4), st.integers(1, 4), st.none() | st.integers(1, 2)),
    st.none() | st.integers(1, 40),
)
def test_no_two_slots_of_an_allocation_share_anything(nodes: list[Node], wanted: Wanted, parallel: int | None) -> None:
    try:
        slots = slots_of_nodes(nodes, wanted, parallel)
    except UserError:
        assert parallel is not None or any(node.devices < (wanted.devices or 0) for node in nodes)
        return
    assert [slot.number for slot in slots] == list(range(len(slots)))
    assert len(slots) == (parallel or len(slots)) >= 1
    for node in nodes:
        here = [slot for slot in slots if slot.node == node.name]
        cores = [core for slot in here for core in slot.cores]
        devices = [device for slot in here for device in slot.devices]
        assert len(set(cores)) == len(cores) <= node.cores
        assert len(set(devices)) == len(devices) <= node.devices
        assert node.memory is None or sum(slot.memory or 0 for slot in here) <= node.memory
        assert not any(slot.is_bound for slot in here), "Slurm binds them"


def test_a_slot_of_a_node_is_a_step_of_the_allocation() -> None:
    (slot,) = slots_of_nodes([Node("n1", 4, 2, 1000)], Wanted(2, 2), None)
    words = slot.prefix
    assert words[0] == "srun"
    assert {"--exact", "--nodelist=n1", "--cpus-per-task=4", "--gpus-per-node=2", "--mem=1000M"} <= set(words)
    (here,) = slots_of(range(4), [], Wanted(4), None)
    assert here.prefix == []


@pytest.mark.parametrize(("given", "found"), [("0,2", ["0", "2"]), ("", []), ("-1", []), ("1,-1,0", ["1"])])
def test_devices_are_those_that_cuda_shows(monkeypatch: pytest.MonkeyPatch, given: str, found: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert devices() == found

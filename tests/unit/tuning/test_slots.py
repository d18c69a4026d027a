"""Where trials run at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.tuning.slots import Wanted, slots_of


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
            "tune.parallel_trials: 3 trials want a core each, and this process may use 2 cores; allowed: 2",
        ),
        (
            8,
            ["0", "1"],
            Wanted(1),
            3,
            "tune.parallel_trials: 3 trials of 1 GPU want 3 GPUs, and there are 2; allowed: 2",
        ),
        (8, ["0"], Wanted(1, devices=2), None, "resources.gpus_per_node: a trial wants 2 GPUs, and there are 1 here"),
        (8, ["0"], Wanted(2), 2, "tune.parallel_trials: 2 trials of 2 GPUs want 4 GPUs, and there are 1; allowed: 1"),
    ],
)
def test_more_than_there_is_is_refused(
    cores: int, devices: list[str], wanted: Wanted, parallel: int | None, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        slots_of(range(cores), devices, wanted, parallel)
    assert str(caught.value).startswith(words)

"""Meters, and the job's account of them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hpc_train.engine.rank_energy import RankEnergy
from hpc_train.telemetry.energy import meter as meter_module
from hpc_train.telemetry.energy.account import STILL, EnergyAccount, Metered, amount, in_words
from hpc_train.telemetry.energy.counter import Counter
from hpc_train.telemetry.energy.meter import Meter
from hpc_train.telemetry.status import sound_energy
from tests.support import LIMIT_SECS, wait_for


class Source:
    """A counter's value, and a clock."""

    def __init__(self, *values: float, wraps_at: float | None = None) -> None:
        self.values = list(values)
        self.counter = Counter("c", self.read, wraps_at)

    def read(self) -> float:
        if not self.values:
            raise OSError("gone")
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]


def test_a_meter_begins_at_nothing_and_follows_wraps() -> None:
    source = Source(99_990.0, 99_995.0, 10.0, 30.0, wraps_at=100_000.0)
    with Meter([source.counter], every_secs=3600) as meter:
        assert meter.joules == 0
        assert [meter.read(), meter.read(), meter.read()] == [5.0, 20.0, 40.0]


def test_what_no_machine_takes_or_no_counter_tells_ends_the_measurement() -> None:
    now = 0.0
    for values, secs, wraps_at, why in (
        ((1000.0, 0.0), 10.0, 262_143.0, "it shows"),  # reset, not wrapped
        ((1000.0, 2000.0), 1000.0, 262_143.0, "begun again more than once"),
        ((5.0, 5.0), 601.0, None, "has not moved"),
        ((5.0, 5e6), 10.0, None, "it shows"),
    ):
        now = 0.0
        with Meter([Source(*values, wraps_at=wraps_at).counter], 3600, lambda: now) as meter:
            now = secs
            assert meter.read() is None and why in str(meter.failed)


def test_a_counter_that_stands_still_beside_others_is_named(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    moves, stands, late = Source(1.0, 2.0, 2.0, 3.0, 4.0), Source(5.0), Source(0.0, 0.0, 0.0, 0.0, 1.0)
    with Meter([moves.counter, stands.counter, late.counter], 3600, lambda: now) as meter:
        now = 10.0
        assert (meter.read(), meter.secs, meter.still) == (1.0, 10.0, [])
        assert RankEnergy(meter, None).taken()[STILL] == 0.0, "told, so that what was said is taken back"
        now = 70.0
        assert (meter.read(), meter.secs, meter.still) == (2.0, 70.0, ["c", "c"])
        assert "c, c stands still" in caplog.text
        one = EnergyAccount({0: Metered("n1", "GPUs")}, meter, None)
        (node,) = one.field(1)["nodes"]  # reads it again
        assert (node["lacks"], node["joules"], node["secs"]) == ("1 counter standing still", 4.0, 70.0)


def test_a_counter_that_blocks_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    first, blocked, free = Source(1.0, 2.0, 3.0), threading.Event(), threading.Event()

    def read() -> float:
        if first.values[0] == 2.0:
            blocked.set()
            assert free.wait(LIMIT_SECS)
        return first.read()

    monkeypatch.setattr(meter_module, "PATIENCE_SECS", 0.01)
    with Meter([Counter("c", read)], every_secs=3600) as meter:
        assert meter.read() == 0.0 and blocked.wait(LIMIT_SECS)
        monkeypatch.setattr(meter_module, "PATIENCE_SECS", LIMIT_SECS)
        assert [meter.read() for _ in range(9)] == [0.0] * 9, "as last read, at once"
        free.set()
        wait_for(lambda: meter.joules == 1.0, "the reading ends")
        wait_for(lambda: meter.read() == 2.0, "it is read again")


def test_a_meter_that_has_ended_tells_what_it_has() -> None:
    with Meter([Source(1.0, 2.0, 3.0).counter], every_secs=3600) as meter:
        assert meter.read() == 1.0
    assert meter.read() == 1.0


def test_a_meter_reads_by_itself() -> None:
    source = Source(0.0, 1.0, 2.0, 3.0)
    with Meter([source.counter], every_secs=0.01) as meter:
        assert wait_for(lambda: meter.joules == 3.0, "the thread reads")


@pytest.mark.parametrize("values", [(5.0, 4.0), (0.0, 1e12), (0.0, float("nan"))])
def test_a_counter_that_fails_ends_the_measurement(values: tuple[float, ...]) -> None:
    good, bad = Source(1.0, 2.0, 3.0), Source(*values)
    with Meter([good.counter, bad.counter], every_secs=3600) as meter:
        assert meter.read() is None
        assert "c failed" in str(meter.failed)
        assert meter.read() is None


def account(metered: dict[int, Metered], before: Any = None) -> EnergyAccount:
    return EnergyAccount(metered, None, before)


TWO = {0: Metered("n1", "GPUs", "memory: no"), 2: Metered("n2", "GPUs", "memory: no")}


def test_the_account_adds_nodes_and_runs() -> None:
    first = account(TWO)
    assert first.field(0)["not_measured"] == "memory: no"
    first.note([100.0, None, 50.0])
    first.note([120.0, None, None])
    found = first.field(500)
    assert (found["joules"], found["total_joules"], found["per_1000_examples"]) == (170.0, 170.0, 340.0)
    assert [node["joules"] for node in found["nodes"]] == [120.0, 50.0]
    second = account(TWO, sound_energy(found))
    second.note([1.0, None, 2.0])
    assert second.field(10)["total_joules"] == 173.0
    assert in_words(found) == "170 J, 340 J per 1,000 examples (GPUs)"
    first.note([120.0, None, 60.0], [60.0, None, 30.0], [None, None, 2.0])
    first.note([], still=[None, None, 0.0])
    assert first.field(500)["nodes"][1]["lacks"] == "memory: no", "it has moved again"
    first.note([], still=[None, None, 2.0])
    nodes = [(node["joules"], node["secs"], node["lacks"]) for node in first.field(500)["nodes"]]
    assert nodes == [(120.0, 60.0, "memory: no"), (60.0, 30.0, "memory: no; 2 counters standing still")]


def test_a_node_that_does_not_tell_makes_it_incomplete() -> None:
    one = account({**TWO, 4: Metered("n3", "", "the machine shows no counters")})
    one.note([100.0, None, 50.0])
    found = one.field(100)
    assert (found["joules"], found["complete"], "per_1000_examples" in found) == (150.0, False, False)
    assert in_words(found).endswith("incomplete: of 2 of 3 nodes")
    assert in_words(sound_energy(found) or {}).endswith("incomplete: of 2 of 3 nodes")
    one.note([None, None, -1.0])
    assert one.field(100)["joules"] == 100.0
    assert one.field(100)["nodes"][1]["lacks"] == "its counters failed"
    assert "total_joules" not in account(TWO, sound_energy(found)).field(1)
    later = account(TWO, sound_energy(found))
    later.note([1.0, None, 1.0])
    assert "total_joules" not in later.field(1)


def test_the_chief_reads_its_own_node() -> None:
    source = Source(0.0, 7.0)
    with Meter([source.counter], every_secs=3600) as meter:
        assert EnergyAccount({0: Metered("n1", "the whole node")}, meter, None).field(7)["per_1000_examples"] == 1000


@pytest.mark.parametrize(
    "value", [None, 3, [], {"joules": -1}, {"joules": "x", "nodes": 3}, {"nodes": [1]}, {"nodes": [{"host": 3}]}]
)
def test_what_others_wrote_is_not_believed(value: Any) -> None:
    found = sound_energy(value)
    assert found is None or "joules" not in found
    assert found is None or in_words(found).startswith("not measured")
    EnergyAccount(TWO, None, found).field(1)


@pytest.mark.parametrize(
    ("joules", "text"), [(0, "0 J"), (950, "950 J"), (1234, "1.23 kJ"), (5.6e7, "56 MJ"), (2e10, "20 GJ")]
)
def test_amounts(joules: float, text: str) -> None:
    assert amount(joules) == text

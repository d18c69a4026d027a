"""overhead.py's records, targets and page say the same numbers."""

from __future__ import annotations

import sys
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))  # before tests/, which has a support.py, too

from peers.contestants import Contestant, Found, pair_records, turn_records
from peers.measuring import plan
from peers.models import CNN, LARGE, MLP
from peers.page import make_page
from peers.settings import DEFAULT_FLAGS, DISTRIBUTE, ESTIMATOR, FIT, FULL, NO_EXCHANGE, OURS, PEERS, PLAIN, SAME_FLAGS
from peers.targets import targets, weak_scaling
from peers.told import Told
from support.report import as_html

SPEEDS = {
    OURS: 0.9, DEFAULT_FLAGS: 0.6, SAME_FLAGS: 0.8, NO_EXCHANGE: 0.95, PLAIN: 1.0, FIT: 0.9, DISTRIBUTE: 0.4,
    ESTIMATOR: 0.3,
}  # fmt: skip
"""Of each rank where there are several."""


def told(one: Contestant, speeds=SPEEDS, blocks: int = 4) -> Told:
    rate = 1000 * one.ranks * (speeds[one.way] if one.ranks > 1 else 1.0)
    examples = 64 * one.ranks
    secs = tuple(10 * examples / rate * (1 + 0.01 * n) for n in range(blocks))
    return Told(10, secs, (2.3, 1.0), examples, secs)


def records(models=(MLP, CNN, LARGE), speeds=SPEEDS, ranks=(1, 2)):
    found = []
    for unit in plan(models, ranks, PEERS):
        all_told = [told(one, speeds) for one in unit.ways]
        if unit.kind == "one process":
            found += pair_records(unit, all_told)
        else:
            by_way = {one: [of, of] for one, of in zip(unit.ways, all_told, strict=True)}
            found += turn_records(unit, by_way)
    for record in found:
        record.config["unit"] = record.case.partition(" – ")[0]
    return found


def by_name(found) -> dict[str, bool | None]:
    return {target.what.partition(",")[0]: target.reached if target.measured else None for target in found}


def test_records_are_distinct_and_their_ratios_those_of_the_values():
    found = records()
    assert len({(record.case, record.baseline) for record in found}) == len(found)
    bases = {record.case: record for record in found if record.baseline is None}
    for record in found:
        assert record.spread[0] <= record.value <= record.spread[1]
        assert (record.baseline is None) == (record.ratio is None)
        if record.baseline is not None:
            unit = record.case.partition(" – ")[0]
            assert record.ratio == pytest.approx(record.value / bases[f"{unit} – {record.baseline}"].value)
            low, high = record.config["ratio_spread"]
            assert low <= record.ratio <= high


@given(st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_weak_scaling_is_a_part_of_so_many_times_one_rank(ours, by_hand):
    found = Found(records([MLP], {**SPEEDS, OURS: ours, SAME_FLAGS: by_hand}), "weak scaling")
    assert weak_scaling(found, MLP, Contestant(OURS, 2), OURS).median == pytest.approx(ours)
    assert weak_scaling(found, MLP, Contestant(SAME_FLAGS, 2), PLAIN).median == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("way", "speed", "missed"),
    [
        (OURS, 0.9, set()),
        (DEFAULT_FLAGS, 0.9 / 1.39, {"Against plain Horovod"}),
        (SAME_FLAGS, 0.92, {"Against plain Horovod"}),
        (DISTRIBUTE, 0.9 / 1.79, {"Against tf.distribute"}),
        (OURS, 0.87, {"Weak scaling"}),
    ],
)
def test_a_target_is_missed_by_what_falls_short_of_it(way, speed, missed):
    found = targets(records(speeds={**SPEEDS, SAME_FLAGS: 0.5, DISTRIBUTE: 0.1, DEFAULT_FLAGS: 0.1, way: speed}))
    assert {target.what.partition(",")[0] for target in found if not target.reached} == missed


def test_without_a_measurement_a_target_is_not_reached():
    assert not any(target.reached for target in targets([]))
    only_fit = [record for record in records() if record.config["way"] == FIT or record.baseline == f"{FIT}, 1 rank"]
    assert by_name(targets(only_fit))["Against Keras fit"] is True


def test_one_process_and_processes_of_their_own_are_not_mixed():
    found = records([MLP])
    ours, rival = Contestant(OURS, 2), Contestant(SAME_FLAGS, 2)
    for record in found:
        if record.config["kind"] == "one process" and record.baseline is not None:
            record.config["ratio_spread"][0] = -1.0
    assert Found(found, "one process").ratio(MLP, ours, rival).low == -1.0
    assert Found(found, "weak scaling").ratio(MLP, ours, rival).low > 0


def test_the_page_has_all_models_ways_and_targets():
    found = records()
    page = make_page(found, FULL, {"tf.estimator": "no Python 3.11"})
    text = as_html(page, "2026-01-01")
    for words in (MLP, CNN, LARGE, DEFAULT_FLAGS, FIT, DISTRIBUTE, ESTIMATOR, NO_EXCHANGE, "1 comparisons are missing"):
        assert words in text
    assert {section.title for section in page.sections} >= {"Weak scaling", "How it was measured"}
    beside = next(s for s in page.sections if s.title == "Against other programs").tables[1]
    assert beside.rows[0] == (MLP, "2", "1.50", f"{0.95 / 0.6:.2f}", "95%")


def test_the_page_says_which_threads_there_are_and_what_no_exchange_is():
    text = as_html(make_page(records(), FULL, {}), "2026-01-01")
    assert "one thread on each rank in both of its pools" in text
    assert "Only in those of tf.estimator the second pool is TensorFlow&#39;s own" in text
    assert "the plain loop, each rank by itself at once: what the cores allow it" in text
    assert "makes use of a second core" not in text


@pytest.mark.parametrize("kind", ["one process", "weak scaling", "other programs", None])
def test_a_page_of_some_of_it_or_of_nothing_can_be_made(kind):
    found = [record for record in records([CNN]) if record.config["kind"] == kind]
    text = as_html(make_page(found, FULL, {}), "2026-01-01")
    assert (CNN in text) and asdict(FULL)


def test_more_ranks_than_two_are_shown_without_targets():
    page = make_page(records([MLP], ranks=(1, 2, 4)), FULL, {})
    weak = next(section for section in page.sections if section.title == "Weak scaling")
    assert {row[1] for row in weak.tables[0].rows} == {"2", "4"}

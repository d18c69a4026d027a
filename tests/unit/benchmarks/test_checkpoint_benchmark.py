"""checkpoint.py, with tiny models: records of all ways, targets, and the page."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from checkpoints.cases import NEXT_STEP, RESTORE, STALL, STEPS, WRITE, Settings, measure
from checkpoints.contestants import OURS, Size, make_subject
from checkpoints.page import make_page, targets
from support.page import as_text
from support.records import Found

BASELINES = {STALL: 6, NEXT_STEP: 2, WRITE: 3, RESTORE: 2}
SIZES = ("1 MB", "67 MB", "1 GB")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    size = Size("67 MB", layers=2, width=8, batch=4, rounds=1)
    settings = Settings((size,), step_size=size.name, step_secs=0.05, step_rounds=1)
    return Found(measure(make_subject(size), settings, tmp_path_factory.mktemp("saves")))


def test_ours_is_compared_with_each_baseline(found):
    for what, count in BASELINES.items():
        own = found.where(what=what, way=OURS)
        assert len(set(own.each("case"))) == 1
        assert len({record.baseline for record in own}) == count
    for record in found:
        assert record.spread[0] <= record.value <= record.spread[1]
        json.dumps(record.config, allow_nan=False)
    parts = {
        one.config["way"]: one.value for one in found.where(what=RESTORE) if one.config["way"].startswith(f"{OURS}:")
    }
    assert len(parts) == 3
    assert found.one(what=STEPS, way="a save in flight").config["saves"] > 0
    cases = [(record.case, record.baseline) for record in found]
    assert len(set(cases)) == len(cases)


def test_the_page_has_all_sections_and_targets(found):
    text, drawings = as_text(make_page(found, ["67 MB"], {"file_system": "tmpfs"}), "2026-01-01")
    for words in ("Stall of a save", "Time to a committed checkpoint", "Restore", "Training beside a save", "tmpfs"):
        assert words in text
    assert len(drawings) == 4


def test_a_target_is_missed_where_one_size_misses_it(found):
    def changed(**ratios: float) -> Found:
        return Found(replace(one, ratio=ratios.get(one.config["size"][:2], one.ratio)) for one in kept)

    kept = [replace(one, config={**one.config, "size": size}) for size in SIZES for one in found]
    good = targets(changed(**{"1 ": 0.4, "67": 0.4}), SIZES)
    assert [target.reached for target in good[:2]] == [True, True]
    assert not targets(changed(**{"1 ": 2.1, "67": 0.4}), SIZES)[0].reached
    assert not targets(changed(**{"1 ": 0.4, "67": 0.6}), SIZES)[1].reached
    assert not targets(changed(**{"1 ": 0.4, "67": 0.89}), SIZES)[2].reached  # of the steps without a save
    assert not any(target.reached for target in targets(Found([]), SIZES))

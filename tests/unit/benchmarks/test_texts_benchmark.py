"""texts.py, with few rows: what is compared with what, padding, the page."""

from __future__ import annotations

import sys

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from inputs.texts import (
    BATCH,
    FANCY,
    FIXED,
    OURS,
    SEQUENCES,
    SHARDS,
    SLICES,
    TEXTS,
    TFRECORD,
    THEIRS,
    Settings,
    kinds,
    make_page,
    measure,
    padding,
)
from support.page import as_text
from support.records import Found

SETTINGS = Settings(2 * SHARDS * BATCH, rounds=1, limit_secs=0.002, threads=2)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    texts, sequences = kinds(tmp_path_factory.mktemp("rows"), SETTINGS.rows)
    return Found([*measure(texts, SETTINGS), *measure(sequences, SETTINGS), *padding(sequences)])


@pytest.mark.parametrize("kind", [TEXTS, SEQUENCES])
def test_shards_are_compared_with_what_reads_the_same_rows(found, kind):
    baselines = {
        order: {one.baseline for one in found.where(kind=kind, order=order, way=OURS)} for order in ("none", "global")
    }
    assert baselines == {"none": {THEIRS, TFRECORD, SLICES}, "global": {THEIRS, TFRECORD, FANCY}}
    assert all(one.value > 0 for one in found.where(kind=kind))
    assert found.one(kind=kind, order="block", way=FIXED).baseline is None


def test_buckets_leave_less_padding(found):
    without, bucketed = (found.one(padding=True, way=way).value for way in ("shuffle: block", "bucket_by"))
    assert 40 < without < 50, "of rows of 1 to 49 numbers, padded to the longest of many"
    assert bucketed < without


def test_the_page_has_every_way(found):
    text, drawings = as_text(make_page(found), "2026-01-01")
    assert all(way in text for way in (OURS, THEIRS, FIXED, TFRECORD, SLICES, FANCY, "Padding"))
    assert len(drawings) == 6

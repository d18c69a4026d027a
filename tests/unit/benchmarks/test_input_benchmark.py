"""input_pipeline.py, with few small rows: records of all ways, targets, the page, a page cache that stays."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from inputs.cases import ONE_THREAD, Settings, measure_cold, measure_warm
from inputs.contestants import DATASET, MEMCPY, READER, TFRECORD, ZLIB
from inputs.data import ROW_KINDS, write
from inputs.page import make_page, targets
from support.page import as_text
from support.page_cache import CacheStaysError
from support.records import Found

SETTINGS = Settings(0.1, rounds=1, cold_rounds=1, limit_secs=0.002, threads=2, steps=1, quick=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory):
    kind = replace(ROW_KINDS[0], batch=8)
    return write(tmp_path_factory.mktemp("rows") / "data", kind, SETTINGS.megabytes, ("contiguous", "gzip"))


@pytest.fixture(scope="module")
def found(data) -> Found:
    return Found(measure_warm(data, SETTINGS))


def test_ours_is_compared_with_what_does_the_same(found):
    cases = [(record.case, record.baseline) for record in found]
    assert len(set(cases)) == len(cases)
    own = found.where(layout="contiguous", order="global", cores="all")
    assert {one.baseline for one in own.where(way=READER, threads=1)} == {
        MEMCPY,
        TFRECORD,
        "np.take",
        "h5py fancy index",
    }
    assert ONE_THREAD in {one.baseline for one in own.where(way=READER, threads=2)}
    assert ZLIB in {one.baseline for one in found.where(layout="gzip", order="none", way=READER)}
    assert {one.baseline for one in found.where(cores="one", way=DATASET)} == {MEMCPY, TFRECORD}
    assert "block contiguous 784 B reader 1 thread" in found.each("case")


def test_page_and_targets_speak_of_what_was_measured(found):
    judged = {target.what: target for target in targets(found, SETTINGS)}
    assert [name for name, *_ in judged["Sequential, contiguous: reader, 1 thread"].measured] == ["784 B"]
    assert not judged["Global shuffle, contiguous, rows of 3 KB: reader, 1 thread"].measured
    text, drawings = as_text(make_page(found, SETTINGS, {}, []), "2026-01-01")
    for words in ("Sequential (shuffle: none)", "Against TFRecord on one core", "gzip", "CPU s a GB"):
        assert words in text
    assert len(drawings) == 3


def test_a_page_cache_that_stays_is_named(data, monkeypatch):
    monkeypatch.setattr("support.page_cache.MAX_RESIDENT", -1.0)
    with pytest.raises(CacheStaysError, match="stayed in memory"):
        list(measure_cold(data, SETTINGS))

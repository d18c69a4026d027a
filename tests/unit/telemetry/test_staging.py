"""What is told of copies of shards on nodes: in the status, to people, and what is read of it again."""

from __future__ import annotations

import pytest

from hpc_train.telemetry.staging import StagedData, in_words
from hpc_train.telemetry.status import sound, sound_staged


def test_the_node_that_has_least_counts_and_the_one_that_took_longest() -> None:
    data = StagedData("/scratch", 40_000_000, 2)
    assert in_words(data.field()) == "40.0 MB to each of 2 nodes, in /scratch; how many are there is not known yet"
    told = {"staged_bytes": [None, 2e7, None, 4e7], "staged_secs": [None, 1.5, None, 3.25], "input": [0.5] * 4}
    data.note(told)
    assert told == {"input": [0.5] * 4}
    assert data.field() == {"folder": "/scratch", "bytes": 20_000_000, "of_bytes": 40_000_000, "nodes": 2, "secs": 3.25}
    assert in_words(data.field()) == "20.0 MB of 40.0 MB on each of 2 nodes, in /scratch, in 3.2 s"
    data.note({"staged_bytes": [4e7, None], "staged_secs": [9.0, None]})  # one node has not told
    data.note({})
    assert data.field()["secs"] == 3.25


@pytest.mark.parametrize(
    "change", [{"folder": 3}, {"bytes": -1}, {"of_bytes": 0.5}, {"nodes": None}, {"secs": float("nan")}, {"secs": -1.0}]
)
def test_what_this_version_would_not_write_is_not_read(change: dict) -> None:
    data = StagedData("/scratch", 10, 1)
    assert sound({"staged": data.field()}) == {"staged": data.field()}
    data.note({"staged_bytes": [10.0], "staged_secs": [0.5]})
    field = data.field()
    assert sound({"staged": field}) == {"staged": field}
    assert sound_staged(field | change) is None
    assert sound_staged([field]) is None

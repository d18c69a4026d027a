"""Amounts as people read them."""

from __future__ import annotations

import pytest

from hpc_train.config.resources import parse_memory
from hpc_train.telemetry.units import binary_size, short_secs, short_size


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0"),
        (836, "836"),
        (999.6, "1.0K"),
        (1672, "1.6K"),
        (9.96 * 2**20, "10M"),
        (96 << 30, "96G"),
        (1000 << 30, "1.0T"),
    ],
)
def test_short_sizes(count: float, shown: str) -> None:
    assert short_size(count) == shown
    assert len(shown) <= 4


def test_sizes_are_those_that_job_files_have() -> None:
    assert [binary_size(parse_memory(text) << 20) for text in ("500M", "8G", "2T")] == [
        "500.0 MiB",
        "8.0 GiB",
        "2.0 TiB",
    ]
    assert [short_size(parse_memory(text) << 20) for text in ("500M", "32G", "20T")] == ["500M", "32G", "20T"]
    assert binary_size(10) == "10 B"


@pytest.mark.parametrize(
    ("secs", "shown"), [(0, "0s"), (4e-7, "<1µs"), (12e-6, "12µs"), (0.0042, "4.2ms"), (0.9996, "1.0s"), (75, "75s")]
)
def test_short_durations(secs: float, shown: str) -> None:
    assert short_secs(secs) == shown

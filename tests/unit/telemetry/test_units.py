"""Amounts as people read them."""

from __future__ import annotations

import pytest

from hpc_train.telemetry.units import short_secs, short_size


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (836, "836"), (999.6, "1.0k"), (1672, "1.7k"), (9.96e6, "10M"), (96e9, "96G"), (999.7e9, "1.0T")],
)
def test_short_sizes(count: float, shown: str) -> None:
    assert short_size(count) == shown
    assert len(shown) <= 4


@pytest.mark.parametrize(
    ("secs", "shown"), [(0, "0s"), (4e-7, "<1µs"), (12e-6, "12µs"), (0.0042, "4.2ms"), (0.9996, "1.0s"), (75, "75s")]
)
def test_short_durations(secs: float, shown: str) -> None:
    assert short_secs(secs) == shown

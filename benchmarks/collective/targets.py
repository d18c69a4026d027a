"""The number to reach, and what was measured beside it. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Iterator

from scale_model.measured import RAW
from support.report import Target

from collective.results import Found
from collective.ways import GROUP, ONE_TENSOR, size_name

BUS_SHARE = 0.9
FROM_BYTES = 1 << 20


def targets(found: Found) -> list[Target]:
    """All of them."""
    wanted = f"≥ {BUS_SHARE:g} x raw MPI_Allreduce from {size_name(FROM_BYTES)} on (the lowest of all sizes)"
    return [Target("Horovod's bus bandwidth", wanted, list(_lowest(found)))]


def _lowest(found: Found) -> Iterator[tuple[str, str, bool]]:
    for place, ranks in found.groups():
        for way in (ONE_TENSOR, GROUP):
            ratios = [
                (ratio, size)
                for size in found.sizes(place, ranks, "allreduce")
                if size >= FROM_BYTES and (ratio := found.ratio(place, ranks, "allreduce", size, way, RAW)) is not None
            ]
            if ratios:
                ratio, size = min(ratios)
                yield f"{place}, {ranks} ranks, {way}", f"{ratio:.3f} at {size_name(size)}", ratio >= BUS_SHARE

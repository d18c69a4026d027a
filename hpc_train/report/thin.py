"""Long curves, with fewer points that look the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Points = Sequence[tuple[float, float | None]]
"""x and y of a curve by x; y None: a gap."""


def thin(points: Points, limit: int) -> list[tuple[float, float | None]]:
    """At most `limit` (at least 6) of `points`, in order: of each stretch the lowest, the highest and a gap."""
    if len(points) <= limit:
        return list(points)
    stretches = (limit - 2) // 3
    kept = {0, len(points) - 1}
    for i in range(stretches):
        part = range(i * len(points) // stretches, (i + 1) * len(points) // stretches)
        known = [(y, at) for at in part if (y := points[at][1]) is not None]
        if known:
            kept |= {min(known)[1], max(known)[1]}
        kept |= set([at for at in part if points[at][1] is None][:1])
    return [points[at] for at in sorted(kept)]

"""The numbers to reach, and what was measured beside them. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from support.records import Record
from support.report import Target

from peers.contestants import Contestant, Found, Ratio
from peers.models import CNN, MLP
from peers.settings import DEFAULT_FLAGS, DISTRIBUTE, FIT, OURS, PLAIN, SAME_FLAGS

DEFAULT_FLAGS_RATIO = 1.4
SAME_FLAGS_RATIO = 0.99
FIT_RATIO = 0.98
DISTRIBUTE_RATIO = 1.8
WEAK_SCALING: Mapping[str, float] = {CNN: 0.88, MLP: 0.78}
"""Examples a second of two ranks, as a part of twice those of one rank that runs no allreduce."""
RANKS = 2
"""What the targets for several ranks are meant for."""


def weak_scaling(found: Found, model: str, own: Contestant, alone: str) -> Ratio | None:
    """A way's examples a second as a part of so many times those of the way `alone` on one rank."""
    ratio = found.ratio(model, own, Contestant(alone, 1))
    return ratio and ratio.over(own.ranks)


def targets(records: Iterable[Record]) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    kept = list(records)
    pairs, weak, others = (Found(kept, kind) for kind in ("one process", "weak scaling", "other programs"))
    ours = Contestant(OURS, RANKS)
    of_default = [(m, weak.ratio(m, ours, Contestant(DEFAULT_FLAGS, RANKS)), DEFAULT_FLAGS_RATIO) for m in (MLP, CNN)]
    of_fit = [(m, pairs.ratio(m, Contestant(OURS, 1), Contestant(FIT, 1)), FIT_RATIO) for m in pairs.models()]
    of_distribute = [
        (m, others.ratio(m, ours, Contestant(DISTRIBUTE, RANKS)), DISTRIBUTE_RATIO) for m in others.models()
    ]
    of_scaling = [(m, weak_scaling(weak, m, ours, OURS), least) for m, least in WEAK_SCALING.items()]
    times = "times as many examples/s"
    return [
        Target(f"Against {DEFAULT_FLAGS}, 2 ranks", f"≥ {DEFAULT_FLAGS_RATIO} {times}", _parts(of_default)),
        Target(f"Against {SAME_FLAGS}, 1 and 2 ranks", f"≥ {SAME_FLAGS_RATIO} {times}", list(_of_same_flags(pairs))),
        Target(f"Against {FIT}, 1 rank", f"≥ {FIT_RATIO} {times}", _parts(of_fit)),
        Target(f"Against {DISTRIBUTE}, 2 ranks", f"≥ {DISTRIBUTE_RATIO} {times}", _parts(of_distribute)),
        Target(
            "Weak scaling, 2 ranks against one that runs no allreduce",
            ", ".join(f"≥ {least} ({model})" for model, least in WEAK_SCALING.items()),
            _parts(of_scaling),
        ),
    ]


def same_flags_rival(ranks: int) -> Contestant:
    """On one rank the same loop without an allreduce, which is faster than one over itself."""
    return Contestant(PLAIN if ranks == 1 else SAME_FLAGS, ranks)


def _of_same_flags(pairs: Found) -> Iterator[tuple[str, str, bool]]:
    for model in pairs.models():
        for ranks in (1, RANKS):
            ratio = pairs.ratio(model, Contestant(OURS, ranks), same_flags_rival(ranks))
            name = f"{model}, {ranks} rank{'s' if ranks > 1 else ''}"
            yield from _parts([(name, ratio, SAME_FLAGS_RATIO)])


def _parts(found: Sequence[tuple[str, Ratio | None, float]]) -> list[tuple[str, str, bool]]:
    return [(name, f"{ratio.median:.3f}", ratio.median >= least) for name, ratio, least in found if ratio is not None]

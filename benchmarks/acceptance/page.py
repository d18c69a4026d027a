"""The whole report: what it says first, all targets, and the pages of the parts one after the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from support.page import Report

TITLE = "Does it hold here? The first hour on a GPU site"
PURPOSE = (
    "Whether training by this package is correct on this machine, what it costs beside other programs, how it scales, "
    "and what the device is kept busy with. Each target says what was wanted, what was measured, and whether that is "
    "reached; a part that could not run is named below with the reason."
)
ON_GPUS = "Run on {gpus} of this node and {ranks} ranks at most; all parts trained on GPUs."
ON_CORES = (
    "NO GPU WAS USED ({why}): each part ran on the processor, and begins by saying what stands in for a GPU. Nothing "
    "here says how fast a GPU is, or that one computes correctly."
)


def whole_page(pages: Sequence[Report], gpus: int, ranks: int, why_none: str) -> Report:
    """One page of those of all parts.

    Args:
        gpus: That are used. why_none: Why there are none.
    """
    where = ON_GPUS.format(gpus=f"{gpus} GPU{'s' if gpus > 1 else ''}", ranks=ranks)
    facts: Mapping[str, object] = {name: value for page in pages for name, value in page.facts.items()}
    return Report(
        TITLE,
        [PURPOSE, where if gpus else ON_CORES.format(why=why_none)],
        [target for page in pages for target in page.targets if target.measured],
        [section for page in pages for section in page.sections],
        {**facts, "ranks": ranks},
    )

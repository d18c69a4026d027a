"""Who is to blame when a job makes no progress: a verdict from what the ranks report of themselves. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

RANKS_NAMED = 8
"""Ranks that a message lists; the rest are counted."""

WAITS_FOR_INPUT = "waiting for input"
WAITS = "waiting for "
"""What the names of phases begin with in which a rank waits."""


@dataclass(frozen=True)
class Report:
    """What a rank reports of its main thread: the phase and step it is in, for how many `secs` it has not moved on."""

    rank: int
    host: str
    pid: int
    phase: str
    step: int | None
    secs: float


@dataclass(frozen=True)
class Verdict:
    """Why the job is ended.

    Attributes:
        message: For people; names the ranks in `blamed`.
        blamed: In ascending order; empty where nobody can be singled out.
    """

    message: str
    blamed: tuple[int, ...] = ()


def judge(
    reports: Mapping[int, Report],
    places: Sequence[str],
    stood_secs: float,
    timeout_secs: float,
    gone: Collection[int] = (),
) -> Verdict | None:
    """Decides who keeps the job from moving on; None: nobody yet, since a rank that answers has moved lately.

    Args:
        reports: Of the ranks that answer, by rank; the judge's own among them. One of a rank in `gone` does not count.
        places: Host and process of every rank, as text ("host n2, pid 123").
        stood_secs: How long the judge itself has not moved.
        timeout_secs: A rank that has not moved for less is taken for a slow one, and waited for.
        gone: Ranks that have left, or are known to be lost.

    The first of these that some ranks, but not all, meet: they do not answer; they wait for input; they are behind
    in step; they do something while others wait for it. A phase whose name begins with "waiting for " is a wait.
    """
    ranks = [rank for rank in range(len(places)) if rank not in gone]
    reports = {rank: report for rank, report in reports.items() if rank not in gone}
    silent = [rank for rank in ranks if rank not in reports]
    if silent:
        they = "it" if len(silent) == 1 else "them"
        message = f"{_named(silent, places)} stopped answering: no word of {they} for {stood_secs:.0f} s"
        return Verdict(f"{message}; {_others(reports, silent)}", tuple(silent))
    if min(report.secs for report in reports.values()) < timeout_secs:
        return None
    blamed = _singled_out(reports)
    what = _doing(reports, blamed or ranks)
    if blamed or len(ranks) == 1:
        blamed = blamed or [0]
        have = "has" if len(blamed) == 1 else "have"
        secs = max(reports[rank].secs for rank in blamed)
        others = f"; {_others(reports, blamed)}" if len(blamed) < len(ranks) else ""
        return Verdict(f"{_named(blamed, places)} {have} not moved for {secs:.0f} s: {what}{others}", tuple(blamed))
    if all(report.phase == WAITS_FOR_INPUT for report in reports.values()):
        hint = "look at the data's file system"
    else:
        hint = "none can be singled out; where Horovod warned of a stall, it named the ranks that did not take part"
    return Verdict(f"all {len(ranks)} ranks have not moved for {stood_secs:.0f} s: {what}; {hint}")


def doing(phase: str, step: int | None) -> str:
    """In words: "training step 41", "export at step 41"."""
    if step is None:
        return phase
    return f"{phase}{'' if phase.endswith('step') else ' at step'} {step}"


def _singled_out(reports: Mapping[int, Report]) -> list[int]:
    steps = {rank: report.step for rank, report in reports.items() if report.step is not None}
    last_step = max(steps.values(), default=0)
    waits = any(report.phase.startswith(WAITS) for report in reports.values())
    tests = [
        [rank for rank, report in reports.items() if report.phase == WAITS_FOR_INPUT],
        [rank for rank, step in steps.items() if step < last_step],
        [rank for rank, report in reports.items() if waits and not report.phase.startswith(WAITS)],
    ]
    return next((sorted(ranks) for ranks in tests if 0 < len(ranks) < len(reports)), [])


def _others(reports: Mapping[int, Report], blamed: Collection[int]) -> str:
    others = [rank for rank in sorted(reports) if rank not in blamed]
    if not others:
        return "no other rank answers"
    return f"{'the other' if len(others) == 1 else 'the others'}: {_doing(reports, others)}"


def _doing(reports: Mapping[int, Report], ranks: Collection[int]) -> str:
    """What they do: "training step 41", or in groups, "training step 41 (ranks 0, 2), export at step 41 (rank 1)"."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        groups.setdefault(doing(reports[rank].phase, reports[rank].step), []).append(rank)
    if len(groups) == 1:
        return next(iter(groups))
    shown = [f"{what} ({_named(members)})" for what, members in list(groups.items())[:RANKS_NAMED]]
    return ", ".join(shown) + (" …" if len(groups) > RANKS_NAMED else "")


def _named(ranks: Sequence[int], places: Sequence[str] | None = None) -> str:
    shown = [f"{rank} ({places[rank]})" if places else str(rank) for rank in ranks[:RANKS_NAMED]]
    more = f" and {len(ranks) - RANKS_NAMED} more" if len(ranks) > RANKS_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(shown)}{more}"

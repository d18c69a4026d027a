"""What the report shows by node: the ranks' own times, and energy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hpc_train.jobdir.history import History
from hpc_train.jobdir.records import as_number
from hpc_train.report import words
from hpc_train.report.numbers import by_rank, entries_of_ranks
from hpc_train.report.tables import MOST_RANKS, Table
from hpc_train.telemetry.energy.account import NOT_MEASURED, amount, in_words
from hpc_train.telemetry.progress import OWN_SECS
from hpc_train.telemetry.status import sound_energy, sound_slow_ranks
from hpc_train.telemetry.units import short_secs

MOST_RANKS_DRAWN = 4096


def energy(history: History) -> Table | None:
    """Joules by node, of the last run, and what is counted; None where none is measured."""
    found = sound_energy(history.status.get("energy"))
    if not found or "joules" not in found:
        return None

    def row(name: str, joules: float | None, watts: float | None, covers: str, lacks: str) -> tuple[str, ...]:
        power = words.UNKNOWN if watts is None else f"{watts:.3g} W"
        return (name, covers or NOT_MEASURED, lacks, words.UNKNOWN if joules is None else amount(joules), power)

    nodes = found.get("nodes", [])
    rows = [
        row(node["host"] or words.UNKNOWN, node.get("joules"), _watts(node), node["covers"], node["lacks"])
        for node in nodes[:MOST_RANKS]
    ]
    if len(nodes) > 1:
        power = [_watts(node) for node in nodes if node.get("joules") is not None]
        watts = sum(known) if len(known := [one for one in power if one is not None]) == len(power) else None
        name = "all" if found.get("complete") else "all that have told"
        rows.append(row(name, found["joules"], watts, "all of these", ""))
    return Table(("", "counts", "does not", "energy", "mean power"), rows, 3)


def _watts(node: Mapping[str, Any]) -> float | None:
    """The mean power of a node while it was measured, as its own clock had it."""
    joules, secs = node.get("joules"), node.get("secs")
    return joules / secs if joules is not None and secs else None


@dataclass(frozen=True)
class RankTime:
    """One rank of a map: its own time of a step in words, how slow it is from 0 to 5, and whether it has been named."""

    rank: int
    text: str
    level: int
    named: bool


def rank_map(history: History) -> list[tuple[str, list[RankTime]]]:
    """By node the own time of each rank in the last run; empty where none is known."""
    times = _own_times(history)
    if not times:
        return []
    middle = median(times.values())
    named = {entry["rank"] for entry in sound_slow_ranks(history.status.get("slow_ranks")) or []}
    hosts = {
        int(rank): str(entry.get("node") or entry.get("host") or words.UNKNOWN)
        for entry in entries_of_ranks(history)
        if (rank := as_number(entry.get("rank"))) is not None
    }
    nodes: dict[str, list[RankTime]] = {}
    for rank, secs in sorted(times.items()):
        level = min(5, max(0, int((secs / middle - 1) * 10))) if middle > 0 else 0
        found = RankTime(rank, words.duration(secs) if secs >= 1 else short_secs(secs), level, rank in named)
        nodes.setdefault(hosts.get(rank, words.UNKNOWN), []).append(found)
    return [(words.label(host), found) for host, found in nodes.items()]


def _own_times(history: History) -> dict[int, float]:
    """Seconds by rank: of all ranks at the end of the last run, else of the newest record."""
    ends = history.all_of("start", "rank_times")[-1:]
    values = ends[0].values.get("own_secs") if ends and ends[0].kind == "rank_times" else None
    if isinstance(values, list):
        known = {rank: as_number(value) for rank, value in enumerate(values[:MOST_RANKS_DRAWN])}
        return {rank: float(value) for rank, value in known.items() if value is not None and value >= 0}
    found = by_rank(history, OWN_SECS)
    last = zip(found.ranks, found.values[-1].tolist(), strict=True) if found is not None else ()
    return {rank: value for rank, value in last if value == value and value >= 0}


def energy_note(history: History) -> str:
    """Why no energy is known; empty where it is, or nothing is known of it."""
    found = sound_energy(history.status.get("energy"))
    return in_words(found) if found and "joules" not in found else ""

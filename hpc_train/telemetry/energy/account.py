"""The job's energy on the chief: what nodes have told, and what status.json says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_train.telemetry.energy.meter import Meter
from hpc_train.telemetry.units import counted

NOT_MEASURED = "not measured"
JOULES, SECS, STILL = "joules", "joules_secs", "joules_still"
"""What a rank that measures tells, by name. See EnergyAccount.note."""


@dataclass(frozen=True)
class Metered:
    """What measures on one node.

    Attributes:
        host: The node. covers: what is counted; empty where nothing is. why: what is not, and why.
    """

    host: str
    covers: str
    why: str = ""


class EnergyAccount:
    """What the nodes of a run have used, by the ranks that measure; for the chief.

    Args:
        metered: By rank. own: that of the chief, rank 0; None where it has none.
        before: The field `energy` of the run before, in the same job-dir, as `sound_energy` leaves it; None: first run.
    """

    def __init__(self, metered: Mapping[int, Metered], own: Meter | None, before: Mapping[str, Any] | None) -> None:
        self._metered, self._own = dict(metered), own
        self._joules: dict[int, float] = {}
        self._secs: dict[int, float] = {}
        self._still: dict[int, int] = {}
        self._failed: set[int] = set()
        self._before = before or {}

    def note(
        self,
        by_rank: Sequence[float | None],
        secs: Sequence[float | None] = (),
        still: Sequence[float | None] = (),
    ) -> None:
        """What ranks have measured up to now; None: nothing new of that rank; below 0: it measures no more.

        Args:
            secs: In which they have. still: how many counters stand still beside others.
        """
        for rank, joules in enumerate(by_rank):
            if joules is not None and rank in self._metered:
                if joules < 0:
                    self._failed.add(rank)
                else:
                    self._joules[rank] = joules
        self._secs.update({rank: value for rank, value in enumerate(secs) if value is not None})
        self._still.update({rank: int(value) for rank, value in enumerate(still) if value is not None})

    def field(self, examples: float) -> dict[str, Any]:
        """The field `energy` of status.json. Reads the chief's own counters.

        `joules`: of this run, and `total_joules` with the earlier runs, which is left out where one of them was not
        measured; `per_1000_examples`: of this run; `nodes`: [{host, joules, secs, covers, lacks}], without `joules`
        where that node does not tell, `secs`: in which it has measured them; `complete`: whether all nodes have told,
        if only up to the last record. Or `not_measured`: why.
        """
        if self._own is not None:
            joules = self._own.read()
            self.note([-1.0 if joules is None else joules], [self._own.secs], [len(self._own.still)])
        nodes = []
        for rank, one in sorted(self._metered.items()):
            known: dict[str, float] = {}
            if rank in self._joules and rank not in self._failed:
                measured = {"joules": self._joules[rank], "secs": self._secs.get(rank)}
                known = {name: round(value, 3) for name, value in measured.items() if value is not None}
            nodes.append({"host": one.host, **known, "covers": one.covers, "lacks": self._lacks(rank, one)})
        told = [self._joules[rank] for rank in self._metered if rank in self._joules and rank not in self._failed]
        if not told:
            reasons = dict.fromkeys(str(node["lacks"]) for node in nodes if node["lacks"])
            return {"not_measured": "; ".join(reasons) or "no node has told yet"}
        found: dict[str, Any] = {"joules": round(sum(told), 3), "nodes": nodes, "complete": len(told) == len(nodes)}
        if examples > 0 and found["complete"]:
            found["per_1000_examples"] = round(1000 * sum(told) / examples, 3)
        if not self._before:
            found["total_joules"] = found["joules"]
        elif "total_joules" in self._before and self._before.get("complete") is True:
            found["total_joules"] = round(found["joules"] + self._before["total_joules"], 3)
        return found

    def _lacks(self, rank: int, about: Metered) -> str:
        if rank in self._failed:
            return "its counters failed"
        still = f"{counted(still, 'counter')} standing still" if (still := self._still.get(rank)) else ""
        return "; ".join(filter(None, (about.why, still)))


def in_words(energy: Mapping[str, Any]) -> str:
    """The field `energy` of a status in a phrase, as sound_energy leaves it. Pure."""
    if "joules" not in energy:
        return f"{NOT_MEASURED}: {energy.get('not_measured', 'no reason is known')}"
    text = amount(energy["joules"])
    if (share := energy.get("per_1000_examples")) is not None:
        text += f", {amount(share)} per 1,000 examples"
    if (total := energy.get("total_joules")) is not None and total != energy["joules"]:
        text += f"; {amount(total)} with earlier runs"
    covers = list(dict.fromkeys(node["covers"] for node in energy.get("nodes", ()) if node.get("covers")))
    told = sum(node.get("joules") is not None for node in energy.get("nodes", ()))
    if covers:
        text += f" ({', '.join(covers)})"
    if energy.get("complete") is not True:
        text += f"; incomplete: of {told} of {len(energy.get('nodes', ()))} nodes"
    return text


def amount(joules: float) -> str:
    """As in "12.3 kJ". Pure."""
    for size, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if joules >= size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules:.3g} J"

"""StagedData: what of a run's training data lies on its nodes, and the field `staged` of status.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpc_train.telemetry.units import counted, size

STAGED_BYTES, STAGED_SECS = "staged_bytes", "staged_secs"
"""What the rank of a node that copies tells: bytes of the shards that are copied, and how long that has taken."""


class StagedData:
    """What the chief knows of the copies; `of_bytes`: of all shards, of which each of `nodes` nodes copies its own."""

    def __init__(self, folder: str, of_bytes: int, nodes: int) -> None:
        self._folder, self._of_bytes, self._nodes = folder, of_bytes, nodes
        self._told: dict[str, Any] = {}

    def note(self, told: dict[str, list[float | None]]) -> None:
        """Takes out of `told` what ranks have told of copies; the others have told None."""
        sizes, secs = (_known(told.pop(name, [])) for name in (STAGED_BYTES, STAGED_SECS))
        if len(sizes) == self._nodes:
            self._told = {"bytes": int(min(sizes)), "secs": round(max(secs), 3)}

    def field(self) -> dict[str, Any]:
        """`folder`, `of_bytes` and `nodes`, and what the nodes have told.

        That is, once all have: `bytes` of the one that has least, and `secs` of the one that took longest.
        """
        return {"folder": self._folder, "of_bytes": self._of_bytes, "nodes": self._nodes, **self._told}


def _known(told: Sequence[float | None]) -> list[float]:
    return [value for value in told if value is not None]


def in_words(staged: Mapping[str, Any]) -> str:
    """The field `staged` in a phrase, as sound_staged leaves it. Pure."""
    nodes = counted(staged["nodes"], "node")
    where = nodes if staged["nodes"] == 1 else f"each of {nodes}"
    if "bytes" not in staged:
        return f"{size(staged['of_bytes'])} to {where}, in {staged['folder']}; how many are there is not known yet"
    return (
        f"{size(staged['bytes'])} of {size(staged['of_bytes'])} on {where}, in {staged['folder']}, in "
        f"{staged['secs']:.1f} s"
    )

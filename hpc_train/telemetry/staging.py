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
        self._bytes, self._secs = 0.0, 0.0

    def note(self, told: dict[str, list[float | None]]) -> None:
        """Takes out of `told` what ranks have told of copies; the others have told None."""
        sizes, secs = (_known(told.pop(name, [])) for name in (STAGED_BYTES, STAGED_SECS))
        if len(sizes) == self._nodes:
            self._bytes, self._secs = min(sizes), max(secs)

    def field(self) -> dict[str, Any]:
        """`folder`; `bytes` of the node that has least, of `of_bytes`; `nodes`; `secs` of the one that took longest."""
        return {
            "folder": self._folder,
            "bytes": int(self._bytes),
            "of_bytes": self._of_bytes,
            "nodes": self._nodes,
            "secs": round(self._secs, 3),
        }


def _known(told: Sequence[float | None]) -> list[float]:
    return [value for value in told if value is not None]


def in_words(staged: Mapping[str, Any]) -> str:
    """The field `staged` in a phrase, as sound_staged leaves it. Pure."""
    nodes = counted(staged["nodes"], "node")
    where = nodes if staged["nodes"] == 1 else f"each of {nodes}"
    told = f"{size(staged['bytes'])} of {size(staged['of_bytes'])} on {where}, in {staged['folder']}"
    return told + (f", in {staged['secs']:.1f} s" if staged["bytes"] else "")

"""What a process that trains has measured: a JSON file that it writes at its end. Pure."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from peers.settings import LOSS_KEPT

LAST_LOSSES = 8
"""Steps whose losses are averaged for the last one."""


class Took(NamedTuple):
    """What some steps took: seconds by the clock, and CPU seconds of all threads of this process."""

    secs: float
    cpu_secs: float

    @classmethod
    def now(cls) -> Took:
        """Both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, begun: Took) -> Took:
        """From `begun` to this, both of which `now` gave."""
        return Took(self.secs - begun.secs, self.cpu_secs - begun.cpu_secs)


@dataclass(frozen=True)
class Measurement:
    """What one way to train took.

    Attributes:
        steps: That each of `secs` (s) was measured over; cpu_secs: CPU seconds of the process that measures, meanwhile.
        losses: At the first step, and at the end.
        examples: Rows of a step, of all ranks together.
    """

    steps: int
    secs: tuple[float, ...]
    losses: tuple[float, float]
    examples: int
    cpu_secs: tuple[float, ...] = ()

    @classmethod
    def of(cls, steps: int, took: Sequence[Took], losses: tuple[float, float], examples: int) -> Measurement:
        """From what blocks of `steps` took."""
        return cls(steps, tuple(one.secs for one in took), losses, examples, tuple(one.cpu_secs for one in took))

    @property
    def cores(self) -> float:
        """That the process kept busy, on average."""
        return sum(self.cpu_secs) / sum(self.secs)

    @property
    def rates(self) -> tuple[float, ...]:
        """Examples a second, by block."""
        return tuple(self.examples * self.steps / secs for secs in self.secs)

    @property
    def rate(self) -> float:
        """Examples a second, over all blocks together."""
        return self.examples * self.steps * len(self.secs) / sum(self.secs)

    def checked(self, way: str) -> dict[str, Any]:
        """Its fields; RuntimeError where the loss has not fallen: what does not train cannot be compared."""
        first, last = self.losses
        if not last < LOSS_KEPT * first:
            raise RuntimeError(f"{way}: the loss was {first:.3f} at first and {last:.3f} at the end: it does not train")
        return asdict(self)


def rival_parser(doc: str | None) -> argparse.ArgumentParser:
    """What each program of a rival takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="with the shards")
    parser.add_argument("--warm-up", type=int, required=True, help="steps of each worker that are not counted")
    parser.add_argument("--steps", type=int, required=True, help="of each worker")
    parser.add_argument("--out", type=Path, required=True, help="a folder for rank-<number>.json")
    return parser


def write_measurements(path: Path, measured: Sequence[Measurement]) -> None:
    """Writes it in one rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps([asdict(one) for one in measured]))
    os.replace(temporary, path)


def read_measurements(path: Path) -> list[Measurement]:
    """What `write_measurements` wrote."""
    return [measurement_of(one) for one in json.loads(path.read_text())]


def measurement_of(measured: dict[str, Any]) -> Measurement:
    """From its fields, as JSON has them."""
    return Measurement(
        measured["steps"],
        tuple(measured["secs"]),
        tuple(measured["losses"]),
        measured["examples"],
        tuple(measured["cpu_secs"]),
    )

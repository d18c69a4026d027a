"""How fast ranks exchange bytes: what benchmarks/collectives.py has measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.errors import UserError
from hpc_train.files import read_bytes
from hpc_train.planning.traffic import Call

RECORDS = "records.jsonl"
MOST_BYTES = 64 << 20
WAYS = {
    "allreduce": ("Horovod, group, mean", "Horovod, group", "Horovod, one tensor", "MPI_Allreduce"),
    "put": ("hpc_train's window", "Win.Allocate"),
    "get": ("hpc_train's window", "Win.Allocate"),
}
"""Of each operation, the ways of the benchmark that are like what training does, the nearest first."""
MEASURED_AS = {"push": "put", "pull": "get"}
"""What is not measured itself: a rank's links carry the parts of an allreduce as they do those of its halves."""
ONE_NODE = "one node"


@dataclass(frozen=True)
class Rate:
    """One measurement.

    Attributes:
        per_sec: Bytes a second that each link carried.
    """

    operation: str
    place: str
    way: str
    ranks: int
    nbytes: int
    per_sec: float


@dataclass(frozen=True)
class Links:
    """Measured rates, and where they are from."""

    rates: tuple[Rate, ...]
    where: str

    def seconds(self, call: Call, nodes: int) -> float | None:
        """How long an exchange takes among ranks on so many nodes; None: nothing like it was measured.

        The rate is that of the nearest number of ranks, and between two sizes interpolated (both as logarithms).
        """
        operation = MEASURED_AS.get(call.kind, "allreduce")
        own = [rate for rate in self.rates if rate.operation == operation]
        apart = [rate for rate in own if (rate.place == ONE_NODE) == (nodes == 1)]
        own = apart or own
        way = next((way for way in WAYS[operation] if any(rate.way == way for rate in own)), None)
        own = [rate for rate in own if rate.way == way]
        if not own or not call.sent:
            return None if not own else 0.0
        nearest = min((rate.ranks for rate in own), key=lambda ranks: (abs(ranks - call.ranks), ranks))
        by_size = sorted((rate.nbytes, rate.per_sec) for rate in own if rate.ranks == nearest)
        sizes, per_sec = np.log(np.array(by_size, np.float64)).T
        return float(call.sent / np.exp(np.interp(np.log(call.nbytes), sizes, per_sec)))


def seconds(links: Links | None, calls: Iterable[Call], nodes: int) -> float | None:
    """How long a step's exchanges take, one after the other; None where one of them is not known."""
    found = [None if links is None else links.seconds(call, nodes) for call in calls]
    return None if None in found else sum(secs for secs in found if secs is not None)


def read_links(path: Path) -> Links:
    """The rates in records.jsonl of benchmarks/collectives.py, or in the folder that has it.

    Raises:
        UserError: It is none.
    """
    file = path / RECORDS if path.is_dir() else path
    try:
        lines = read_bytes(file, MOST_BYTES, follow=True).decode().splitlines()
    except OSError as error:
        raise UserError(f"--links: {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _strange(file, 1) from None
    found, machine = [], ""
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            rate = _rate(record)
            machine = machine or str(record["config"].get("machine", {}).get("cpu", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _strange(file, number) from None
        found += [rate] if rate is not None else []
    if not found:
        raise _strange(file, 1)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return Links(tuple(found), f"{shown}{f', on {machine}' if machine else ''}")


def measured_here(package: Path = Path(__file__).parents[2]) -> Path | None:
    """The newest results of benchmarks/collectives.py in this checkout."""
    found = (package / "benchmarks" / "results").glob(f"collectives_*_????-??-??/{RECORDS}")
    return max(found, key=lambda path: path.parent.name[-10:], default=None)


def _rate(record: Mapping[str, Any]) -> Rate | None:
    if record["benchmark"] != "collectives":
        raise ValueError("of another benchmark")
    about = record["config"]
    operation, value = about["operation"], float(record["value"]) * 1e9
    if about["way"] not in WAYS.get(operation, ()) or value <= 0:
        return None
    return Rate(operation, str(about["place"]), about["way"], int(record["ranks"]), int(about["bytes"]), value)


def _strange(file: Path, line: int) -> UserError:
    return UserError(f"--links: {file}:{line}: no record of benchmarks/collectives.py; give its records.jsonl")

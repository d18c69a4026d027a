"""The counters of a node: Cray's of the whole node, else those of its processors (RAPL) and GPUs (NVML).

Sources: Linux, Documentation/power/powercap; HPE Cray, pm_counters(5); NVIDIA, NVML API reference. What one counter
contains is counted by no other: a package contains its cores and its uncore, and `energy` of a Cray node all of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.files import read_bytes
from hpc_train.telemetry.energy.counter import MAX_BYTES, Counter, NotMeasuredError, file_counter, read_number
from hpc_train.telemetry.energy.gpus import nvml

SYSTEM = Path("/sys")
SYSTEM_VARIABLE = "HPC_TRAIN_SYSFS"
"""Where /sys lies in the place of /sys, as for a program that sees that of its node elsewhere."""
SHARED_VARIABLE = "HPC_TRAIN_SHARED_NODE"
"""Set for the trials of a study that run beside others on a node."""
MOST_ZONES = 1024


@dataclass(frozen=True)
class NodeCounters:
    """What a node counts.

    Attributes:
        counters: Which do not overlap. covers: what they count, in words. lacks: what they do not, and why; empty where
            there is nothing.
    """

    counters: tuple[Counter, ...]
    covers: str
    lacks: str = ""


def node_counters(
    system: Path | None = None, library: Any = None, devices: Sequence[str | None] | None = (None,)
) -> NodeCounters:
    """What this node counts. Local; reads a few small files.

    Args:
        system: In the place of /sys. library: in the place of pynvml. devices: as in `nvml`.

    Raises:
        NotMeasuredError: Nothing, and why.
    """
    root = system or Path(os.environ.get(SYSTEM_VARIABLE) or SYSTEM)
    others = " with other trials there" if os.environ.get(SHARED_VARIABLE) else ""
    whole = root / "cray/pm_counters/energy"
    with suppress(OSError, ValueError):
        read_number(whole, "J")
        return NodeCounters((file_counter("energy", whole, "J", 1.0),), f"the whole node{others}")
    found: list[tuple[str, list[Counter]]] = []
    lacks = []
    kinds: dict[str, Callable[[], list[Counter]]] = {
        "processors and memory": lambda: rapl(root),
        "GPUs": lambda: nvml(library, devices),
    }
    for what, look in kinds.items():
        try:
            if counters := look():
                found.append((what if what == "GPUs" else what + others, counters))
        except NotMeasuredError as error:
            lacks.append(f"{what}: {error}")
    if not found:
        raise NotMeasuredError("; ".join(lacks))
    every = tuple(counter for _, counters in found for counter in counters)
    return NodeCounters(every, " and ".join(what for what, _ in found), "; ".join(lacks))


def rapl(root: Path = SYSTEM) -> list[Counter]:
    """Of each package and its memory. NotMeasuredError where there are none, or they cannot be read.

    Some processors show a package by two interfaces (intel-rapl and intel-rapl-mmio): the first is taken.
    """
    counters: dict[tuple[str, ...], Counter] = {}
    unread: OSError | ValueError | None = None
    for zone in _zones(root / "class/powercap"):
        try:
            name = _text(zone / "name")
            above = _text(zone.parent / "name") if re.match("intel-rapl(-mmio)?:", zone.parent.name) else ""
            which = (name,) if name.startswith("package") else (above, name)
            if not name.startswith("package") and name != "dram":
                continue  # psys has packages in it, and cores and uncore lie in theirs
            file, wraps = zone / "energy_uj", read_number(zone / "max_energy_range_uj") / 1e6
            read_number(file)
        except (OSError, ValueError) as error:
            unread = unread or error
            continue
        counters.setdefault(which, file_counter("/".join(filter(None, which)), file, "", 1e-6, wraps))
    if unread is not None:  # a part of it would pass for all
        if isinstance(unread, PermissionError):
            raise NotMeasuredError("its counters are readable by root alone, since Linux 5.10")
        raise NotMeasuredError(f"its counters cannot be read: {unread}")
    if not counters:
        raise NotMeasuredError("the machine shows no counters (RAPL)")
    return list(counters.values())


def _zones(folder: Path) -> Iterator[Path]:
    """Zones of packages, and below each of them its parts; intel-rapl's before intel-rapl-mmio's."""
    try:
        names = [name for name in os.listdir(folder) if re.fullmatch(r"intel-rapl(-mmio)?:[0-9]+", name)]
    except OSError:
        return
    for name in sorted(names, key=lambda name: ("mmio" in name, name))[:MOST_ZONES]:
        zone = (folder / name).resolve()
        yield zone
        with suppress(OSError):
            yield from (zone / part for part in sorted(os.listdir(zone)) if re.fullmatch(rf"{name}:[0-9]+", part))


def _text(path: Path) -> str:
    return read_bytes(path, MAX_BYTES, follow=True).decode("ascii", "replace").strip()

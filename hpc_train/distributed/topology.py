"""Which CPUs of a node are one core, and which are next to which memory, GPU and network card: what /sys says of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.files import read_bytes

MAX_FILE_BYTES = 1 << 14
MOST_CPUS = 1 << 14
_ITEM = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


class TopologyError(ValueError):
    """What is known of the node does not do, and why, in words."""


@dataclass(frozen=True)
class Gpu:
    """A GPU of the node; `near`: the CPUs next to it."""

    uuid: str
    near: frozenset[int]


@dataclass(frozen=True)
class Topology:
    """A node as far as binding needs it.

    Attributes:
        domains: The CPUs of each NUMA domain that has any, by its number.
        cores: The CPUs of each core: SMT siblings.
        gpus: Those that this process may open, in the order in which CUDA counts equal ones: that of their bus.
        cards: By name the CPUs next to each network card.
    """

    domains: dict[int, frozenset[int]]
    cores: tuple[frozenset[int], ...]
    gpus: tuple[Gpu, ...] = ()
    cards: dict[str, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, parts in (("NUMA domains", list(self.domains.values())), ("cores", list(self.cores))):
            if sum(map(len, parts)) != len(frozenset().union(*parts)):
                raise TopologyError(f"a CPU is in two {what}, as /sys has it")

    def domain_of(self, near: Collection[int]) -> int | None:
        """The one domain that has all of `near`, where there is more than one; else None."""
        found = [number for number, cpus in self.domains.items() if not cpus.isdisjoint(near)]
        return found[0] if len(found) == 1 < len(self.domains) else None

    def gpu_domain(self, device: str | None) -> int | None:
        """The domain next to a GPU, as CUDA_VISIBLE_DEVICES names it: by number or UUID. None: not known."""
        if device is None:
            return None
        if device.isdecimal():
            return self.domain_of(self.gpus[int(device)].near) if int(device) < len(self.gpus) else None
        matching = [gpu for gpu in self.gpus if device.startswith("GPU-") and gpu.uuid.startswith(device)]
        return self.domain_of(matching[0].near) if len(matching) == 1 else None


def cpu_list(text: str) -> frozenset[int]:
    """CPUs, from the kernel's "0-3,8,10-11". Pure.

    Raises:
        TopologyError: It is no such list.
    """
    found: set[int] = set()
    for item in text.strip().split(",") if text.strip() else ():
        match = _ITEM.fullmatch(item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST_CPUS:
            raise TopologyError(f"{text.strip()[:40]!r} is no list of CPUs")
        found.update(range(first, last + 1))
    return frozenset(found)


def cpu_text(cpus: Collection[int]) -> str:
    """The kernel's "0-3,8,10-11". Pure."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def read_topology(mask: Collection[int], openable: Sequence[str] = (), root: Path = Path("/")) -> Topology:
    """This node's, of the CPUs in `mask`.

    Args:
        openable: GPUs that this process may open: see open_gpus.

    Raises:
        TopologyError: /sys does not have it, or says what cannot be.
    """
    system = root / "sys/devices/system"
    try:
        domains = dict(_domains(system / "node")) or {0: frozenset(mask)}  # a kernel without NUMA has no such folder
        cores = {cpu_list(_text(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")) for cpu in mask}
    except OSError as error:
        raise TopologyError(f"{error.filename} cannot be read: {error.strerror}") from None
    if missing := frozenset(mask).difference(*domains.values()):
        raise TopologyError(f"CPU {min(missing)} is in no NUMA domain, as /sys has it")
    if missing := frozenset(mask).difference(*cores):
        raise TopologyError(f"CPU {min(missing)} is in no core, as /sys has it")
    ordered = tuple(sorted(cores, key=min))
    return Topology(domains, ordered, tuple(_gpus(root, openable)), dict(_cards(root)))


def domain_count(root: Path = Path("/")) -> int:
    """How many NUMA domains there are, at most; one where it is not known. Reads one file."""
    with suppress(OSError, TopologyError):
        return max(1, len(cpu_list(_text(root / "sys/devices/system/node/has_cpu"))))
    return 1


def _text(path: Path) -> str:
    return read_bytes(path, MAX_FILE_BYTES).decode(errors="replace")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _domains(folder: Path) -> Iterator[tuple[int, frozenset[int]]]:
    for name in _names(folder):
        if (match := re.fullmatch(r"node(\d{1,6})", name)) is not None:
            cpus = cpu_list(_text(folder / name / "cpulist"))
            if cpus:  # else memory alone, as of a GPU
                yield int(match[1]), cpus


def _near(device: Path) -> frozenset[int]:
    """CPUs next to a device of the bus; empty where it is not known."""
    with suppress(OSError, TopologyError):
        return cpu_list(_text(device / "local_cpulist"))
    return frozenset()


def _gpus(root: Path, openable: Sequence[str]) -> Iterator[Gpu]:
    folder = root / "proc/driver/nvidia/gpus"
    for name in _names(folder):
        with suppress(OSError):
            said = _text(folder / name / "information")
            minor, uuid = re.search(r"Device Minor:\s*(\d+)", said), re.search(r"GPU UUID:\s*(\S+)", said)
            if minor is None or f"nvidia{minor[1]}" in openable:
                yield Gpu(uuid[1] if uuid else "", _near(root / "sys/bus/pci/devices" / name.lower()))


def _cards(root: Path) -> Iterator[tuple[str, frozenset[int]]]:
    """InfiniBand's, as RoCE's and EFA's are, too; where there are none, Ethernet's that are up."""
    folder = root / "sys/class/infiniband"
    if names := _names(folder):
        yield from ((name, _near(folder / name / "device")) for name in names)
        return
    folder = root / "sys/class/net"
    for name in _names(folder):
        with suppress(OSError):
            if _text(folder / name / "operstate").strip() == "up" and (near := _near(folder / name / "device")):
                yield name, near

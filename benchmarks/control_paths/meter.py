"""What one rank spends on each phase: seconds, seconds of its processor, messages, calls of the file system."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

FILE_EVENTS = frozenset(
    f"os.{name}" for name in ("listdir", "scandir", "mkdir", "rename", "remove", "rmdir", "link", "symlink", "truncate")
) | {"open"}
"""What Python reports of itself (sys.addaudithook); stat and lstat are counted besides."""
NOT_FILES = ("/proc", "/sys", "/dev")


@dataclass
class Spent:
    """What a phase took.

    Attributes:
        wall, cpu: Seconds; cpu of all threads of the process, with what waiting in MPI takes.
        waited_cpu, waited: What of them was spent inside of MPI calls.
        calls: Collective calls. received: bytes that they brought to this rank.
        files: Calls of the file system. entries: of folders that were listed.
    """

    wall: float = 0.0
    cpu: float = 0.0
    waited: float = 0.0
    waited_cpu: float = 0.0
    calls: int = 0
    received: int = 0
    files: int = 0
    entries: int = 0

    def add(self, later: Spent, earlier: Spent) -> None:
        """Adds what was spent between two readings."""
        for one in fields(self):
            more = getattr(later, one.name) - getattr(earlier, one.name)
            setattr(self, one.name, getattr(self, one.name) + more)


class Meter:
    """Divides what this process spends among phases, of which the innermost counts.

    Attributes:
        spent: By phase. times: how often each was entered.
    """

    def __init__(self, first: str) -> None:
        self._total, self._phases = Spent(), [first]
        self.spent: dict[str, Spent] = {first: Spent()}
        self.times = {first: 1}
        self._mark = Spent(wall=_began() - time.monotonic() + time.perf_counter())
        sys.addaudithook(self._heard)
        for name in ("stat", "lstat"):
            setattr(os, name, self._counted(getattr(os, name)))
        listdir = os.listdir

        def listed(*given: Any) -> list[Any]:
            found = listdir(*given)
            self._total.entries += len(found)
            return found

        os.listdir = listed  # type: ignore[assignment]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A context whose cost counts for `name`, and not for the phase around it."""
        self._settle()
        self._phases.append(name)
        self.times[name] = self.times.get(name, 0) + 1
        try:
            yield
        finally:
            self._settle()
            self._phases.pop()

    def next(self, name: str) -> None:
        """The outermost phase ends, and `name` begins."""
        self._settle()
        self._phases[0] = name
        self.times[name] = self.times.get(name, 0) + 1

    def timed(self, owner: Any, method: str, name: str) -> None:
        """Has each call of `owner.method` count as a phase."""
        original = getattr(owner, method)

        @wraps(original)
        def call(*given: Any, **named: Any) -> Any:
            with self.phase(name):
                return original(*given, **named)

        setattr(owner, method, call)

    def communicated(self, call: Callable[[], Any], nbytes: int) -> Any:
        """What a collective call returns that brings `nbytes` here."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return call()
        finally:
            self._total.waited += time.perf_counter() - wall
            self._total.waited_cpu += time.thread_time() - cpu
            self._total.calls += 1
            self._total.received += nbytes

    def told(self) -> dict[str, dict[str, float]]:
        """What each phase took so far, by name."""
        self._settle()
        return {name: {**asdict(spent), "times": self.times[name]} for name, spent in self.spent.items()}

    def _settle(self) -> None:
        self._total.wall, self._total.cpu = time.perf_counter(), time.process_time()
        self.spent.setdefault(self._phases[-1], Spent()).add(self._total, self._mark)
        self._mark = Spent(**asdict(self._total))

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and not str(arguments[0]).startswith(NOT_FILES):
            self._total.files += 1

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(path: Any, *given: Any, **named: Any) -> Any:
            if not str(path).startswith(NOT_FILES):
                self._total.files += 1
            return function(path, *given, **named)

        return call


class MeteredComm:
    """A communicator of mpi4py whose collective calls are counted."""

    def __init__(self, comm: Any, meter: Meter) -> None:
        self.raw, self._meter = comm, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def Split(self, color: int = 0, key: int = 0) -> MeteredComm:  # noqa: N802 (as MPI calls it)
        made = self._meter.communicated(lambda: self.raw.Split(color, key), 8 * self.raw.Get_size())
        return MeteredComm(made, self._meter)

    def Bcast(self, buffer: np.ndarray, root: int = 0) -> None:  # noqa: N802
        nbytes = 0 if self.raw.Get_rank() == root else buffer.nbytes
        self._meter.communicated(lambda: self.raw.Bcast(buffer, root=root), nbytes)

    def Allgather(self, sent: Any, received: np.ndarray) -> None:  # noqa: N802
        self._meter.communicated(lambda: self.raw.Allgather(sent, received), received.nbytes)

    def Allgatherv(self, sent: Any, received: Any) -> None:  # noqa: N802
        self._meter.communicated(lambda: self.raw.Allgatherv(sent, received), received[0].nbytes)

    def Allreduce(self, sent: Any, received: np.ndarray, **how: Any) -> None:  # noqa: N802
        self._meter.communicated(lambda: self.raw.Allreduce(sent, received, **how), received.nbytes)

    def Gather(self, sent: Any, received: Any, root: int = 0) -> None:  # noqa: N802
        nbytes = 0 if received is None else received.nbytes
        self._meter.communicated(lambda: self.raw.Gather(sent, received, root=root), nbytes)

    def Gatherv(self, sent: Any, received: Any, root: int = 0) -> None:  # noqa: N802
        nbytes = 0 if received is None else received[0].nbytes
        self._meter.communicated(lambda: self.raw.Gatherv(sent, received, root=root), nbytes)

    def Scatter(self, sent: Any, received: np.ndarray, root: int = 0) -> None:  # noqa: N802
        self._meter.communicated(lambda: self.raw.Scatter(sent, received, root=root), received.nbytes)


def memory() -> dict[str, int]:
    """Bytes of this process: proportional share (PSS), private, resident, and the most that was resident."""
    told = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kib = {name: int(told[name].split()[0]) for name in ("Pss", "Private_Clean", "Private_Dirty", "Rss")}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    return {"pss": kib["Pss"] << 10, "private": private << 10, "rss": kib["Rss"] << 10, "most_rss": most << 10}


def _began() -> float:
    """When this process began, by time.monotonic()."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return since_boot - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()

"""What a job prints, from its files: all of it, its end, or as it comes."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.jobdir.paths import LOG_FILE, LOGS

POLL_SECS = 0.2
ASK_EVERY_SECS = 2.0
"""How often it is asked at first whether the job has ended, while its output is looked at every POLL_SECS."""
ASK_SELDOM_SECS = 10.0
"""And in the end: a job may run for days, and Slurm's controller serves everybody."""
CHUNK_BYTES = 1 << 20
_RUN = re.compile(r"run-(\d+)")
_RANK = re.compile(r"rank\.(\d+)")


@dataclass(frozen=True)
class Line:
    """A line of output, without its end. `stream`: "stdout" or "stderr" of a rank; None where one file has both."""

    text: str
    rank: int | None
    stream: str | None


@dataclass
class _Tail:
    """Reads whole lines from a file that grows."""

    path: Path
    rank: int | None
    stream: str | None
    offset: int = 0
    _part: bytes = field(default=b"", repr=False)

    def read(self, last: bool) -> Iterator[Line]:
        """The lines that have come; with `last`, one without an end too."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self.offset:  # it was begun anew
                    self.offset, self._part = 0, b""
                file.seek(self.offset)
                while data := file.read(CHUNK_BYTES):
                    self.offset += len(data)
                    *lines, self._part = (self._part + data).split(b"\n")
                    yield from (self._line(line) for line in lines)
        except FileNotFoundError:
            return
        if last and self._part:
            part, self._part = self._part, b""
            yield self._line(part)

    def _line(self, data: bytes) -> Line:
        return Line(data.decode(errors="replace").rstrip("\r"), self.rank, self.stream)


class JobOutput:
    """The output of the job in `job_dir`, of all its runs: all, or one rank's where its launcher keeps that apart."""

    def __init__(self, job_dir: Path, rank: int | None) -> None:
        self._job_dir, self._rank = job_dir, rank
        self._tails: dict[Path, _Tail] = {}

    def files(self) -> list[Path]:
        """Those that there are now, in order."""
        if self._rank is None:
            log = self._job_dir / LOG_FILE
            return [log] if log.is_file() else []
        return [path for rank, path in rank_files(self._job_dir) if rank == self._rank]

    def is_there(self) -> bool:
        """Whether something was printed."""
        return any(path.stat().st_size for path in self.files())

    def skip(self) -> None:
        """Leaves out what there is now."""
        for _ in self.new_lines(last=True):
            pass

    def new_lines(self, last: bool = False) -> Iterator[Line]:
        """What has come since the last call; with `last`, also a line that has no end."""
        for path in self.files():
            if path not in self._tails:
                stream = path.name if self._rank is not None else None
                self._tails[path] = _Tail(path, self._rank, stream)
            yield from self._tails[path].read(last)


def rank_files(job_dir: Path) -> list[tuple[int, Path]]:
    """Each rank's files in the order of the runs: logs/run-0/1/rank.2/stdout and stderr."""
    found = []
    for path in (job_dir / LOGS).glob("run-*/*/rank.*/std*"):
        run, rank = _RUN.fullmatch(path.parents[2].name), _RANK.fullmatch(path.parent.name)
        if run and rank and path.name in ("stdout", "stderr"):
            found.append((int(run[1]), int(rank[1]), path.name != "stdout", path))
    return [(rank, path) for _, rank, _, path in sorted(found)]


def last_lines(output: JobOutput, count: int | None, last: bool) -> Iterator[Line]:
    """What there is now: the last `count` lines, or all; with `last`, also a line that has no end."""
    lines = output.new_lines(last)
    yield from lines if count is None else deque(lines, maxlen=count)


def follow(output: JobOutput, has_ended: Callable[[], bool]) -> Iterator[Line | None]:
    """What comes from now on until the job has ended and all of it is read; None where there is nothing for a while."""
    asked, every = 0.0, ASK_EVERY_SECS
    while True:
        ended = False
        if time.monotonic() - asked > every:
            ended, asked, every = has_ended(), time.monotonic(), min(ASK_SELDOM_SECS, 1.2 * every)
        yield from output.new_lines(last=ended)
        if ended:
            return
        yield None
        time.sleep(POLL_SECS)

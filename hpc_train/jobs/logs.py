"""What a job prints, from its files: all of it, its end, or as it comes."""

from __future__ import annotations

import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from hpc_train.errors import UserError
from hpc_train.files import open_to_read
from hpc_train.jobdir.paths import LOG_FILE, LOGS, SUBMISSION_FILE
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.status import read_status, sound

POLL_SECS = 0.2
ASK_EVERY_SECS = 2.0
"""How often it is asked at first whether the job has ended, while its output is looked at every POLL_SECS."""
ASK_SELDOM_SECS = 10.0
"""And in the end: a job may run for days, and Slurm's controller serves everybody."""
CHUNK_BYTES = 1 << 18
LONGEST_LINE = 1 << 16
"""In bytes; a longer line is cut into several."""
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
    """Reads lines from a file that grows, in bounded memory."""

    path: Path
    rank: int | None
    stream: str | None
    offset: int = 0
    _part: bytes = field(default=b"", repr=False)

    def read(self, last: bool) -> Iterator[Line]:
        """The lines that have come; with `last`, one without an end too."""
        with self._opened() as file:
            if file.seek(0, os.SEEK_END) < self.offset:  # it was begun anew
                self.offset, self._part = 0, b""
            file.seek(self.offset)
            while data := file.read(CHUNK_BYTES):
                self.offset += len(data)
                *lines, rest = (self._part + data).split(b"\n")
                *begun, self._part = _pieces(rest)
                yield from map(self._line, chain(*map(_pieces, lines), begun))
        if last and self._part:
            part, self._part = self._part, b""
            yield self._line(part)

    def go_to_last(self, count: int, last: bool) -> int:
        """Goes where the last `count` lines begin that `read` would give, and returns how many there are."""
        with self._opened() as file:
            self.offset, found = _begin_of_last(file, count, last)
        self._part = b""
        return found

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file; an empty one where it is not there."""
        try:
            with open_to_read(self.path) as file:
                yield file
        except FileNotFoundError:
            yield io.BytesIO()
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}") from None

    def _line(self, data: bytes) -> Line:
        return Line(data.decode(errors="replace").rstrip("\r"), self.rank, self.stream)


def _pieces(line: bytes) -> Iterator[bytes]:
    """A line in pieces of LONGEST_LINE bytes at most, none of which ends within a character. Pure."""
    begin = 0
    while len(line) - begin > LONGEST_LINE:
        end = begin + LONGEST_LINE
        while line[end] & 0xC0 == 0x80 and begin + LONGEST_LINE - end < 3:  # goes on a character of UTF-8
            end -= 1
        yield line[begin:end]
        begin = end
    yield line[begin:]


def _begin_of_last(file: BinaryIO, count: int, last: bool) -> tuple[int, int]:
    """Where the last `count` lines begin, and how many there are; with `last`, one that has no end is one.

    Reads little more than these lines.
    """
    begin, found = file.seek(0, os.SEEK_END), 0
    if not last:
        low = max(0, begin - LONGEST_LINE)
        file.seek(low)
        ended = low + file.read(LONGEST_LINE).rfind(b"\n") + 1
        begin = ended if ended > low or low == 0 else begin
    while found < count and begin > 0:
        low = max(0, begin - LONGEST_LINE)
        file.seek(low)
        block = file.read(begin - low)
        end, before = len(block), found
        while found < count and (newline := block.rfind(b"\n", 0, end - 1)) >= 0:
            end, found = newline + 1, found + 1
        if found == before:  # the first line of the file, or the end of one that is longer than the block
            end, found = 0, found + 1
        begin = low + end
    return begin, found


class JobOutput:
    """The output of the job in `job_dir`, of all its runs: all, or one rank's where its launcher keeps that apart."""

    def __init__(self, job_dir: Path, rank: int | None) -> None:
        self._job_dir, self._rank = job_dir, rank
        self._tails: dict[Path, _Tail] = {}

    def files(self) -> list[Path]:
        """Those that there are now, in order."""
        if self._rank is None:
            log = self._job_dir / LOG_FILE
            return [log] if log.is_file() else output_by_hand(self._job_dir)
        return [path for rank, path in rank_files(self._job_dir) if rank == self._rank]

    def is_there(self) -> bool:
        """Whether something was printed."""
        return any(path.stat().st_size for path in self.files())

    def skip(self) -> None:
        """Leaves out what there is now."""
        self.go_to_last(0, last=True)

    def go_to_last(self, count: int, last: bool) -> None:
        """Leaves out all that there is now but its last `count` lines; with `last`, one without an end is one."""
        for tail in reversed(self._all_tails()):
            count -= tail.go_to_last(count, last)

    def new_lines(self, last: bool = False) -> Iterator[Line]:
        """What has come since the last call; with `last`, also a line that has no end.

        Raises:
            UserError: A file cannot be read.
        """
        for tail in self._all_tails():
            yield from tail.read(last)

    def _all_tails(self) -> list[_Tail]:
        def tail(path: Path) -> _Tail:
            return _Tail(path, self._rank, path.name if self._rank is not None else None)

        return [self._tails.setdefault(path, tail(path)) for path in self.files()]


def output_by_hand(job_dir: Path) -> list[Path]:
    """The file that a job of `sbatch slurm/train.sh` or `hpc-train launch` prints into, as its job-dir records it.

    None that belongs to another user than the record: it might be anybody's.
    """
    output = sound(read_status(job_dir)).get("output")
    with suppress(OSError, ValueError):
        if output is not None and Path(output).is_absolute() and not os.path.lexists(job_dir / SUBMISSION_FILE):
            found, record = os.lstat(output), os.lstat(job_dir / STATUS_FILE)
            if stat.S_ISREG(found.st_mode) and found.st_uid == record.st_uid:
                return [Path(output)]
    return []


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
    if count is not None:
        output.go_to_last(count, last)
    yield from output.new_lines(last)


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

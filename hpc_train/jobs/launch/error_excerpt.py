"""What the ranks of a job printed before they failed: the lines that report the error, and which rank's they are."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_train.distributed.silence import CHATTER
from hpc_train.files import open_to_read
from hpc_train.jobs.launch.launcher_output import LauncherOutput
from hpc_train.jobs.launch.mpirun_output import MpirunOutput
from hpc_train.jobs.launch.srun_output import SrunOutput

READ_BYTES = 1 << 16
"""So much is read of the end of each file."""
MAX_LINES = 20
MAX_LINE_CHARS = 500

_ABORT = re.compile(rb"MPI_ABORT was invoked on rank (\d+)")
_CHATTER = re.compile(CHATTER)
_TRACEBACK = "Traceback (most recent call last):"
_OWN_ERROR = "hpc-train: error: "
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\0-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class RunOutput:
    """Where the output of a run is kept.

    Attributes:
        log: What the job has printed, all its runs.
        begin: How many bytes of `log` are older than this run.
        rank_logs: What each rank has printed in this run: `<rank_logs>/1/rank.<k>/stderr`, as Open MPI writes it with
            --output-filename.
        launcher: What has started the ranks.
    """

    log: Path
    begin: int = 0
    rank_logs: Path | None = None
    launcher: str = "mpirun"


@dataclass(frozen=True)
class LastWords:
    """What is known of a failure: `signal` ("SIGKILL") killed the rank; `lines` are at most MAX_LINES."""

    rank: int | None
    signal: str | None
    message: str | None
    lines: tuple[str, ...]


def last_words(printed: RunOutput, rank: int | None = None, code: int = 255) -> LastWords:
    """What the run has printed of its failure. Files that cannot be read are taken as empty.

    Args:
        rank: The one that failed, where that is known otherwise than by what its launcher has printed.
        code: With which the ranks have ended, where that is known.
    """
    text = end_of(printed.log, printed.begin)
    output: LauncherOutput = SrunOutput() if printed.launcher == "srun" else MpirunOutput()
    ranks_text = output.feed(text) + output.flush()
    output.settle(code)
    end, abort = output.end, _ABORT.search(text)
    if abort:
        rank = int(abort[1])
    elif end is not None and end.rank is not None:
        rank = end.rank
    own = end_of(stderr) if (stderr := _stderr_of(printed.rank_logs, rank)) is not None else b""
    lines, message = error_in((own or ranks_text).decode(errors="replace"))
    if abort or end is None:
        return LastWords(rank, None, message, lines)
    if end.signal is not None or message is None:
        message = str(end)
    return LastWords(rank, end.signal_name, message, lines)


def error_in(text: str) -> tuple[tuple[str, ...], str | None]:
    """The lines that report an error, and the one that names it; else the last lines, and None. Pure.

    An error is the last traceback of Python, or what hpc-train has complained of.
    """
    lines = _printed(text)
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if starts:
        raised = starts[-1] + 1
        while raised < len(lines) and lines[raised].startswith(" "):
            raised += 1
        if raised < len(lines):
            first = max(starts[-1], raised - MAX_LINES * 3 // 4)  # a message may have several lines
            return tuple(lines[first : first + MAX_LINES]), lines[raised]
    errors = [line for line in lines if line.startswith(_OWN_ERROR)][-MAX_LINES:]
    if errors:
        return tuple(errors), errors[0].removeprefix(_OWN_ERROR)
    return tuple(lines[-MAX_LINES:]), None


def lines_around(text: str, message: str) -> tuple[str, ...]:
    """The last lines of `text`, MAX_LINES at most, with the last one that has the first line of `message`. Pure."""
    lines, wanted = _printed(text), message.strip().partition("\n")[0][:MAX_LINE_CHARS]
    found = [number for number, line in enumerate(lines) if wanted and wanted in line]
    end = len(lines) if not found else min(len(lines), found[-1] + 1 + MAX_LINES // 4)
    return tuple(lines[max(0, end - MAX_LINES) : end])


def _printed(text: str) -> list[str]:
    """The lines of a program's output that a reader sees, without what libraries always say. Pure."""
    lines = (_UNPRINTABLE.sub("", line.rstrip("\r").rpartition("\r")[2])[:MAX_LINE_CHARS] for line in text.split("\n"))
    return [line for line in lines if line.strip() and not _CHATTER.search(line)]


def _stderr_of(rank_logs: Path | None, rank: int | None) -> Path | None:
    """The file of a rank, whose folder may be rank.3 or rank.03."""
    if rank_logs is not None and rank is not None:
        with suppress(OSError):
            for folder in (rank_logs / "1").iterdir():
                if re.fullmatch(f"rank\\.0*{rank}", folder.name):
                    return folder / "stderr"
    return None


def end_of(path: Path, begin: int = 0) -> bytes:
    """The last READ_BYTES from `begin` on, from the beginning of a line if there is one; empty if it cannot be read."""
    try:
        with open_to_read(path) as file:
            first = max(begin, file.seek(0, 2) - READ_BYTES)
            file.seek(first)
            text = file.read(READ_BYTES)
    except OSError:
        return b""
    return text if first == begin else text.partition(b"\n")[2] or text

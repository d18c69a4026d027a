"""What every script does around its work: options, mistakes of the user, signals, the exit code, lines of progress."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

EXIT_MISSED = 1
"""A target is missed, or something could not be measured, and --strict was given."""
EXIT_BAD_INPUT = 2
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LAST_LINES, MOST_CHARACTERS = 3, 160
WIDE = 1000
"""Characters of a line where there is no terminal."""
STARTED = time.perf_counter()


class UsageError(Exception):
    """What the user asked for cannot be done; the message says what, where, and what to do."""


class MissingError(Exception):
    """A contestant cannot be had on this machine; the message says why, and the benchmark goes on without it."""


def make_parser(doc: str | None, benchmark: str) -> argparse.ArgumentParser:
    """A parser with what every script of benchmarks/ takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = f"benchmarks/results/{benchmark}_<machine>_<date>"
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where records and report go (default: {where})")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the records there, too, one JSON object a line"
    )
    parser.add_argument("--fresh", action="store_true", help="throw away what an earlier run left in the folder")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where a target is missed, or something fails"
    )
    parser.add_argument("--quick", action="store_true", help="try everything once: the figures mean nothing")
    parser.add_argument("--dir", type=Path, help="where data is written and removed again (default: TMPDIR)")
    return parser


def add_against(parser: argparse.ArgumentParser) -> None:
    """Adds `--against`; see check_against."""
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout of the package, to compare with")


def check_against(args: argparse.Namespace) -> None:
    """UsageError where `--against` names no checkout."""
    if args.against is not None and not (args.against / "hpc_train" / "__main__.py").is_file():
        raise UsageError(f"--against: {args.against} is no checkout: it has no hpc_train/__main__.py")


def check_folder(folder: Path | None) -> None:
    """UsageError where `--dir` is no folder."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--dir: {folder} is not a folder")


def width() -> int:
    """Characters of a line on standard output: the terminal's, or any number."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE


def tell(words: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:6.1f} s  {words}", file=sys.stderr, flush=True)


def run_main(main: Callable[[], int]) -> NoReturn:
    """Runs a script and leaves with its exit code.

    A UsageError is printed, and the code is 2. SIGTERM, SIGHUP and Ctrl-C unwind the program as an exception does, so
    that no ranks and no data are left behind; the code is 128 + the signal's number. A second signal changes nothing.
    """
    before = {number: signal.signal(number, _leave) for number in ENDING}
    try:
        code = main()
    except UsageError as error:
        for line in str(error).splitlines():
            print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(code)


def _leave(number: int, _: FrameType | None) -> None:
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def in_short(error: BaseException) -> str:
    """What went wrong, from the text of a failure: its first line, and the last ones of what the ranks printed. Pure.

    Of what mpirun says between its two rules only the beginning counts, and only where the ranks have said nothing.
    """
    first, *more = str(error).splitlines() or [type(error).__name__]
    if first.startswith("mpirun "):
        first = f"mpirun: {first.rpartition(': ')[2]}"  # without its arguments
    of_ranks, of_mpirun = ([line for line, ruled in _lines(more) if ruled == wanted] for wanted in (False, True))
    told = of_ranks[-LAST_LINES:] or of_mpirun[:LAST_LINES]
    lines = (first.strip(), *told)
    return "; ".join(line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…" for line in lines)


def _lines(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Those that say something, and whether they are between rules; the first rule of all may have been cut off."""
    is_rule = [set(line.strip()) == {"-"} for line in lines]
    inside = sum(is_rule) % 2 == 1
    for line, rule in zip(lines, is_rule, strict=True):
        inside ^= rule
        if line.strip() and not rule:
            yield line.strip(), inside

"""A guard against slowing down: the ratios that this package promises, measured in less than 3 minutes on two cores.

    python benchmarks/quick.py                          # make bench-quick
    python benchmarks/quick.py --parts input checkpoint
    python benchmarks/quick.py --parts emulated         # a minute more: eight ranks have to start

What a change has cost, or won:

    python benchmarks/quick.py --json before.jsonl      # and after it --json after.jsonl
    python benchmarks/compare.py before.jsonl after.jsonl

Prints each ratio beside its target, and at the end what falls short. It measures a little of what the other benchmarks
measure, with their code and their targets, and leaves nothing behind: for figures to quote, run those. A part that
cannot run here is named, with the reason. Needs 4 GB of memory; mpirun and Horovod for most parts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from guard.parts import DEFAULT, PARTS, Measured
from pydantic import TypeAdapter
from support.launch import Started, environment
from support.records import Record, write_records
from support.usage import EXIT_MISSED, STARTED, UsageError, check_folder, in_short, run_main, tell

BENCHMARK = "quick"
MEANT_SECS = 180.0
"""All parts together are meant to take less."""
LIMIT_SECS = 240.0
"""For one part; each takes less than a minute or so."""
IDLE_COLUMNS, COUNTED = (3, 4), 8
"""Columns of /proc/stat: idle, and waiting for a disk (proc_stat(5)); the last two are part of others."""
Found = Mapping[str, Measured]
"""By part."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(DEFAULT), help=f"default: {' '.join(DEFAULT)}"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where a target is missed, or a part could not run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there, one JSON object a line")
    parser.add_argument("--dir", type=Path, help="where data is written and removed again (default: TMPDIR)")
    args = parser.parse_args()
    check_folder(args.dir)
    if args.json is not None and args.json.is_dir():
        raise UsageError(f"--json: {args.json} is a folder; give the name of a file")
    return args


class Clocks(NamedTuple):
    """Seconds: by the clock, of all cores that were busy, and of those that this process and its children were.

    Children count, and theirs, once they have ended and were waited for.
    """

    secs: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Clocks:
        """As they are."""
        return cls(time.perf_counter(), busy_secs(Path("/proc/stat").read_text()), sum(os.times()[:4]))

    def taken_by_others(self, later: Clocks) -> float:
        """Cores that other processes, or other virtual machines of this host, took from here to `later`."""
        secs = later.secs - self.secs
        return max(0.0, ((later.busy - self.busy) - (later.own - self.own)) / secs) if secs > 0 else 0.0


def busy_secs(stat: str) -> float:
    """Of all cores together since the machine was started, from the text of /proc/stat."""
    times = [int(word) for word in stat.partition("\n")[0].split()[1 : 1 + COUNTED]]
    return sum(ticks for column, ticks in enumerate(times) if column not in IDLE_COLUMNS) / os.sysconf("SC_CLK_TCK")


def run_all(parts: Sequence[str], run: Callable[[str], Measured]) -> dict[str, Measured]:
    """By part what `run` measured; where it raises, why it could not run."""
    found = {}
    for part in parts:
        tell(part)
        begun = Clocks.now()
        try:
            measured = run(part)
        except (RuntimeError, UsageError) as error:
            measured = Measured(left_out={part: in_short(error)})
        ended = Clocks.now()
        found[part] = replace(measured, secs=ended.secs - begun.secs, taken=begun.taken_by_others(ended))
    return found


def run_apart(part: str, parent: Path | None, limit_secs: float = LIMIT_SECS) -> Measured:
    """Runs a part in a process of its own, in a folder of `parent` that is removed again.

    Raises:
        RuntimeError: It did not end as it should, or took longer than it may.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="quick-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        command = [sys.executable, "-m", "guard.program", part, str(folder)]
        with Started("its process", command, folder, environment(), folder / "part.log") as process:
            process.wait(limit_secs)
        return TypeAdapter(Measured).validate_json((folder / "measured.json").read_bytes())


def run(part: str, parent: Path | None) -> Measured:
    """A part, where it can run here."""
    PARTS[part].check()
    return run_apart(part, parent)


def records(found: Found) -> Iterator[Record]:
    """All that was measured, as of one benchmark."""
    for part, measured in found.items():
        yield from (replace(one, benchmark=BENCHMARK, case=f"{part}: {one.case}") for one in measured.records)


def lines(found: Found) -> Iterator[str]:
    """Each number beside its target."""
    for part, measured in found.items():
        for target in measured.targets:
            yield f"{part}: {target.what}, wanted {target.wanted}"
            for name, value, reached in target.measured:
                yield f"    {name:<40} {value:>20}  {'reached' if reached else 'falls short'}"


def ending(found: Found, all_secs: float) -> Iterator[str]:
    """Lines: what falls short and what measures it in full, what was not measured and why, and the times."""
    numbers = sum(len(target.measured) for measured in found.values() for target in measured.targets)
    missed = {part: own for part, measured in found.items() if (own := list(measured.missed()))}
    if missed:
        yield f"{sum(map(len, missed.values()))} of {numbers} fall short:"
        for part, own in missed.items():
            for target, name, value in own:
                yield f"  {part}: {target.what}, {name}: {value}, wanted {target.wanted}"
        scripts = ", ".join(f"benchmarks/{PARTS[part].script}" for part in missed)
        yield f"So short a run errs by some percent; for longer ones: {scripts}"
    elif numbers:
        yield f"All {numbers} are reached."
    for part, measured in found.items():
        for unit, why in measured.left_out.items():
            yield f"not measured  {part if unit == part else f'{part}, {unit}'}: {why}"
    if disturbed := [f"{part} {measured.taken:.1f}" for part, measured in found.items() if measured.disturbed]:
        cores = ", ".join(disturbed)
        yield f"Other processes took cores meanwhile ({cores}): these figures mean little, measure again without them"
    times = ", ".join(f"{part} {measured.secs:.0f} s" for part, measured in found.items())
    more = f", more than the {MEANT_SECS:.0f} s that it is meant to take at most" if all_secs > MEANT_SECS else ""
    yield f"took {all_secs:.0f} s{more}: {times}"


def main() -> int:
    args = arguments()
    parts = [part for part in PARTS if part in args.parts]
    found = run_all(parts, lambda part: run(part, args.dir))
    if args.json is not None:
        write_records(args.json, records(found))
    print(*lines(found), "", *ending(found, time.perf_counter() - STARTED), sep="\n", flush=True)
    return EXIT_MISSED if args.strict and not all(measured.reached for measured in found.values()) else 0


if __name__ == "__main__":
    run_main(main)

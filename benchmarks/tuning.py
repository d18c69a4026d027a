"""What each setting is worth: synchronous training set up as it is by itself, and with one setting changed.

    python benchmarks/tuning.py                          # about 20 minutes on two cores
    python benchmarks/tuning.py --model cnn --changes "no yield" "bound to cores"
    python benchmarks/tuning.py --quick                  # tries everything once; the figures mean nothing

Writes records and report to benchmarks/results/tuning_<machine>_<date>. A run that was interrupted goes on where it
was. Needs mpirun, Horovod and the extra package jinja2 (the report).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from peers.jobs import run_job
from peers.measuring import PATIENCE, SLOWER, START_SECS, TURN_BLOCKS
from peers.memory import check_memory
from peers.models import DESCRIPTIONS, MODELS, write_data
from peers.settings import BATCH, FULL, QUICK, Settings
from support.charts import OTHER_COLOUR, OUR_COLOUR, Bar, bars
from support.failures import in_short
from support.launch import check_mpirun, check_ranks, here
from support.records import Record
from support.report import Report, Section, Table
from support.results import ResultsFolder, add_arguments, open_results
from support.timing import paired_ratio
from support.usage import UsageError, run_main

BENCHMARK = "tuning"
AS_IT_IS = "as it is"
FUSION = {"HOROVOD_FUSION_THRESHOLD": "134217728"}
CORES = f"{len(os.sched_getaffinity(0))}"
TCP = {"OMPI_MCA_btl": "tcp,self"}


@dataclass(frozen=True)
class Change:
    """One setting that is not as the package has it: of the environment, of `run:` of the job, or of mpirun."""

    name: str
    about: str
    env: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()


CHANGES = (
    Change("no yield", "ranks that wait keep their core", env={"OMPI_MCA_mpi_yield_when_idle": "0"}),
    Change("cycle of 1 ms", "Horovod looks for work as often as it does by default", env={"HOROVOD_CYCLE_TIME": "1"}),
    Change(
        "neither",
        "Horovod's and Open MPI's defaults",
        env={"OMPI_MCA_mpi_yield_when_idle": "0", "HOROVOD_CYCLE_TIME": "1", **FUSION},
    ),
    Change("operations anywhere", "TF_NUM_INTEROP_THREADS: as many as cores", env={"TF_NUM_INTEROP_THREADS": CORES}),
    Change("2 threads a rank", "OMP_NUM_THREADS of each rank", env={"OMP_NUM_THREADS": "2"}),
    Change("bound to cores", "mpirun --bind-to core", options=("--bind-to", "core")),
    Change("fusion of 128 MB", "HOROVOD_FUSION_THRESHOLD as by default", env=FUSION),
    Change("no fusion", "HOROVOD_FUSION_THRESHOLD 0", env={"HOROVOD_FUSION_THRESHOLD": "0"}),
    Change("compression fp16", "run: {compression: fp16}", run={"compression": "fp16"}),
    Change("compression bf16", "run: {compression: bf16}", run={"compression": "bf16"}),
    Change("TCP", "no shared memory, as between nodes", env=TCP),
    Change("TCP, fp16", "the same with compression", env=TCP, run={"compression": "fp16"}),
)
NAMES = tuple(change.name for change in CHANGES)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="mlp", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--changes", nargs="+", default=list(NAMES), metavar="NAME", help="default: all")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more ranks than there are slots")
    parser.add_argument("--dir", type=Path, help="where jobs are written and removed again (default: TMPDIR)")
    add_arguments(parser, BENCHMARK)
    args = parser.parse_args()
    if args.dir is not None and not args.dir.is_dir():
        parser.error(f"--dir: {args.dir} is not a folder")
    return args


def chosen(names: Sequence[str]) -> list[Change]:
    """Those of CHANGES, in their order.

    Raises:
        UsageError: There is no such change.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"--changes: there is no {unknown[0]!r}; there are: {', '.join(NAMES)}")
    return [change for change in CHANGES if change.name in names]


def measure(folder: Path, model: str, ranks: int, change: Change, settings: Settings) -> Record:
    """Jobs with the change and without, in turn: A B, B A."""
    plain = Change(AS_IT_IS, "")
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(settings.passes):
        for case in (plain, change) if number % 2 == 0 else (change, plain):
            told = run_job(
                folder,
                model,
                ranks,
                rival=None,
                pairs=TURN_BLOCKS,
                block_secs=settings.turn_secs / TURN_BLOCKS,
                first_steps=settings.first_steps,
                first_secs=settings.first_secs,
                limit_secs=PATIENCE * (START_SECS + SLOWER * (settings.turn_secs + settings.first_secs)),
                run=case.run,
                launch=here(case.env, options=case.options),
            )[0]
            rates[case.name].append(told.rate)
            tell(f"{case.name}: {told.rate:,.0f} examples/s")
    return record_of(model, ranks, change, rates[change.name], rates[AS_IT_IS])


def measure_all(changes: Sequence[Change], run: Callable[[Change], Record], results: ResultsFolder) -> list[str]:
    """Measures `changes` and keeps their records; returns the names of those that failed, which are noted."""
    failed = []
    for change in changes:
        try:
            results.add(change.name, [run(change)])
        except RuntimeError as error:
            tell(f"{change.name}: failed: {error}")
            results.leave_out(change.name, in_short(error))
            failed.append(change.name)
    return failed


def record_of(model: str, ranks: int, change: Change, own: Sequence[float], plain: Sequence[float]) -> Record:
    """From the examples a second of both, pass by pass. Pure."""
    ratio, low, high = paired_ratio(own, plain)
    return Record(
        BENCHMARK,
        f"{model}, {ranks} ranks, {change.name}",
        ranks=ranks,
        value=median(own),
        unit="examples/s",
        baseline=AS_IT_IS,
        ratio=ratio,
        repeats=len(own),
        spread=(min(own), max(own)),
        config={
            "model": model,
            "batch": BATCH,
            "change": change.name,
            "about": change.about,
            "env": dict(change.env),
            "run": dict(change.run),
            "options": list(change.options),
            "ratio_spread": [low, high],
            "as_it_is": median(plain),
        },
        versions={},
    )


def make_page(records: Sequence[Record], model: str, ranks: int, settings: Settings) -> Report:
    """The report; it has no targets."""
    about = (
        f"{DESCRIPTIONS[model]}, {BATCH} rows a rank and step, {ranks} ranks. Each line is a job of its own beside one "
        f"as the package sets it up, {settings.passes} of each in turn; the ratio is of two that ran one after the "
        "other: above 1, the change is faster."
    )
    entries = [Bar(r.config["change"], r.ratio, OUR_COLOUR if (r.ratio or 0) > 1 else OTHER_COLOUR) for r in records]
    rows = []
    for record in records:
        config, (low, high) = record.config, record.config["ratio_spread"]
        numbers = (
            f"{record.value:,.0f}",
            f"{config['as_it_is']:,.0f}",
            f"{record.ratio:.3f}",
            f"{low:.3f} to {high:.3f}",
        )
        rows.append((config["change"], config["about"], *numbers))
    header = ("Setting", "What it is", "Examples/s", "As it is", "Ratio", "Middle half")
    top = 1.1 * max((record.ratio or 1.0 for record in records), default=1.0)
    section = Section(
        "Examples a second, the package's settings being 1",
        [about],
        [bars("One setting changed", entries, max(top, 1.1))] if entries else [],
        tables=[Table(header, rows, names=2)],
    )
    summary = ["What each of the settings that this package makes is worth, and what others would do."]
    return Report("What settings are worth", summary, [], [section])


def tell(words: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {words}", file=sys.stderr, flush=True)


def main() -> int:
    args = arguments()
    settings, model, changes = QUICK if args.quick else FULL, MODELS[args.model], chosen(args.changes)
    check_ranks([args.ranks], args.oversubscribe, one_node=True)
    check_mpirun()
    check_memory([model], args.ranks)
    told = {**asdict(settings), "model": model, "ranks": args.ranks, "changes": [change.name for change in changes]}
    with open_results(args, BENCHMARK, told) as results:
        left = [change for change in changes if results.finished(change.name) is None]
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="tuning-") as name:
            if left:
                write_data(Path(name), [model], settings.rows)
            failed = measure_all(left, lambda one: measure(Path(name), model, args.ranks, one, settings), results)
        return results.conclude(make_page(results.records, model, args.ranks, settings), args.strict, bool(failed))


STARTED = time.perf_counter()

if __name__ == "__main__":
    run_main(main)

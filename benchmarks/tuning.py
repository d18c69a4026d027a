"""What each setting is worth: synchronous training set up as it is by itself, and with one setting changed.

    python benchmarks/tuning.py                          # about 20 minutes on two cores
    python benchmarks/tuning.py --model cnn --changes "no yield" "bound to cores"
    python benchmarks/tuning.py --quick                  # tries everything once; the figures mean nothing

Writes records and report to benchmarks/results/tuning_<machine>_<date>. A run that was interrupted goes on where it
was. Needs mpirun and Horovod.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from peers.jobs import run_alone
from peers.models import DESCRIPTIONS, MODELS, check_memory, write_data
from peers.settings import BATCH, FULL, QUICK, Settings
from support.drawing import Bar, Bars
from support.launch import check_mpirun, check_ranks, here
from support.page import Report, Section, numbers
from support.records import Found, Record, Sample, records_of
from support.results import Results, open_results
from support.usage import UsageError, make_parser, run_main, tell

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
    Change("allreduce by MPI", "run: {allreduce: mpi}, without Horovod", run={"allreduce": "mpi"}),
    Change("TCP", "no shared memory, as between nodes", env=TCP),
    Change("TCP, fp16", "the same with compression", env=TCP, run={"compression": "fp16"}),
)
NAMES = tuple(change.name for change in CHANGES)


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--model", choices=list(MODELS), default="mlp", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--changes", nargs="+", default=list(NAMES), metavar="NAME", help="default: all")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more ranks than there are slots")
    return parser.parse_args()


def chosen(names: Sequence[str]) -> list[Change]:
    """Those of CHANGES, in their order.

    Raises:
        UsageError: There is no such change.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"--changes: there is no {unknown[0]!r}; there are: {', '.join(NAMES)}")
    return [change for change in CHANGES if change.name in names]


def measure_all(
    changes: Sequence[Change],
    rate: Callable[[Change], float],
    settings: Settings,
    results: Results,
    what: str,
    ranks: int,
) -> None:
    """Measures each of `changes` in turns with none; one that fails is noted, and the others go on."""

    def measure(change: Change) -> list[Record]:
        ways = {case.name: partial(rate, case) for case in (Change(AS_IT_IS, ""), change)}
        rates = results.turns(change.name, ways, settings.passes)
        if change.name not in rates:
            return []
        config = {**asdict(change), "change": change.name, "batch": BATCH, "as_it_is": median(rates[AS_IT_IS])}
        against = {AS_IT_IS: rates[AS_IT_IS]}
        sample = Sample(f"{what}, {change.name}", rates[change.name], against, ranks, config)
        return list(records_of(BENCHMARK, "examples/s", [sample]))

    for change in changes:
        results.add(change.name, results.attempt(change.name, partial(measure, change)) or ())


def make_page(found: Found, model: str, ranks: int, settings: Settings) -> Report:
    """The report; it has no targets."""
    about = (
        f"{DESCRIPTIONS[model]}, {BATCH} rows a rank and step, {ranks} ranks. Each line is a job of its own beside one "
        f"as the package sets it up, {settings.passes} of each in turn; the ratio is of two that ran one after the "
        "other: above 1, the change is faster."
    )
    bars = [Bar(one.config["change"], one.ratio, ours=(one.ratio or 0) > 1) for one in found]
    table = numbers(found, {"Setting": "change", "What it is": "about"}, {"examples/s as it is": "as_it_is"})
    section = Section(
        "One setting changed", [about], [Bars("Examples a second; as the package has it: 1", bars)], [table]
    )
    summary = ["What each of the settings that this package makes is worth, and what others would do."]
    return Report("What settings are worth", summary, [], [section])


def main() -> int:
    args = arguments()
    settings, model, changes = QUICK if args.quick else FULL, MODELS[args.model], chosen(args.changes)
    check_ranks([args.ranks], args.oversubscribe, one_node=True)
    check_mpirun()
    check_memory([model], args.ranks)
    about = {**asdict(settings), "model": model, "ranks": args.ranks, "changes": [change.name for change in changes]}
    with open_results(args, BENCHMARK, about) as results:
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="tuning-") as name:
            folder = Path(name)
            write_data(folder, [model], settings.rows)

            def rate(change: Change) -> float:
                launch = here(change.env, options=change.options)
                found = run_alone(folder, model, args.ranks, settings, change.run, launch).rate
                tell(f"{change.name}: {found:,.0f} examples/s")
                return found

            measure_all(changes, rate, settings, results, f"{model}, {args.ranks} ranks", args.ranks)
        return results.conclude(make_page(Found(results.records), model, args.ranks, settings), args.strict)


if __name__ == "__main__":
    run_main(main)

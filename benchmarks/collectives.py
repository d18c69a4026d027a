"""Collectives: allreduce, broadcast, put, get and accumulate against raw MPI and memcpy, from 4 B to 256 MiB.

    python benchmarks/collectives.py                       # on all cores or Slurm tasks; about 4 minutes on 2
    python benchmarks/collectives.py --ranks 2 4 --oversubscribe
    python benchmarks/collectives.py --quick               # tries everything once; the figures mean nothing

Writes records.jsonl and the report into --out, and the columns of nccl-tests to the terminal while it runs. One that
was interrupted goes on where it was. Inside a Slurm job of several nodes it measures on one node, with one rank a node,
and on all of them; on one node, what TCP takes there stands for a network. Tensors lie on the GPUs where there are some
and Horovod has NCCL.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collective import plan
from collective.page import header, lines, make_page, records, unit_of
from collective.plan import Run, Settings
from scale.network import ACROSS_NODES, BENCHMARK, ONE_NODE, OVER_TCP
from support import machine
from support.launch import check_mpirun, check_ranks, slots, working_parent
from support.results import Results, open_results
from support.usage import UsageError, make_parser, run_main, width

POLL_SECS = 0.05
FUSION = "HOROVOD_FUSION_THRESHOLD"
MISTAKE = "hpc-train: error: "
"""How a rank tells of a mistake of the user's, see hpc_train/distributed/excepthook.py."""


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N", help="counts of ranks (default: all slots)")
    parser.add_argument("--oversubscribe", action="store_true", help="let several ranks share a core")
    every = list(plan.OPERATIONS)
    parser.add_argument("--operations", nargs="+", choices=every, default=every, help="default: all")
    parser.add_argument(
        "--places",
        nargs="+",
        choices=list(plan.PLACES),
        help="default: node tcp, in a job of several nodes node nodes all",
    )
    parser.add_argument("-b", "--begin", metavar="SIZE", help="the smallest size (default: 4)")
    parser.add_argument("-e", "--end", metavar="SIZE", help="the largest size (default: 256M)")
    parser.add_argument("-f", "--factor", type=int, default=4, help="from one size to the next (default: 4)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for the ranks")
    parser.add_argument("--gpu", action="store_true", help="fail where tensors cannot lie on a GPU")
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> Settings:
    """How much is measured.

    Raises:
        UsageError: The sizes are none.
    """
    base = plan.QUICK if args.quick else plan.FULL
    if args.quick and args.begin is args.end is None:
        return base
    try:
        begin = plan.parse_size(args.begin) if args.begin else plan.FULL.sizes[0]
        end = plan.parse_size(args.end) if args.end else plan.FULL.sizes[-1]
        return replace(base, sizes=plan.sizes_between(begin, end, args.factor))
    except ValueError as error:
        raise UsageError(f"--begin, --end, --factor: {error}") from None


def ranks_environment(args: argparse.Namespace) -> dict[str, str]:
    """What `--set` says, and the GPUs of this machine.

    Raises:
        UsageError: It is no NAME=VALUE, or a GPU is demanded and there is none.
    """
    found = {}
    gpus = machine.gpus()
    if args.gpu and not gpus:
        raise UsageError("--gpu: nvidia-smi shows no GPU here")
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        found["CUDA_VISIBLE_DEVICES"] = visible or ",".join(str(number) for number in range(len(gpus)))
    for text in args.set:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--set {text}: give NAME=VALUE")
        if name == FUSION:
            raise UsageError(f"--set {name}: Horovod is started several times here, and crashes where that is set")
        found[name] = value
    return found


def measure(run: Run, settings: Settings, args: argparse.Namespace, env: Mapping[str, str], results: Results) -> None:
    """One mpirun, for what is not measured yet; prints and keeps each size as it comes.

    Raises:
        UsageError: What was asked for cannot be done, as the ranks say.
        RuntimeError: The ranks failed, or are not where they should be.
    """
    print(f"# {run.place}, {run.ranks} ranks", header(width()), sep="\n", flush=True)
    sizes = [size for size in settings.sizes if size <= (run.most_bytes or size)]
    planned = [(name, size) for name in run.operations for size in sizes]
    missing = [one for one in planned if unit_of(run, *one) not in results.kept]
    for operation, nbytes in planned:
        if (operation, nbytes) not in missing:
            show(run, operation, nbytes, results.kept[unit_of(run, operation, nbytes)], results)
    if not missing:
        return
    with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="collectives-") as temporary:
        folder, out = Path(temporary), Path(temporary) / "told.jsonl"
        words = ["-m", "collective.program", "--out", str(out), *(["--gpu"] if args.gpu else [])]
        words += ["--rounds", f"{settings.rounds}", "--repeat-secs", f"{settings.repeat_secs}"]
        words += ["--operations", *dict.fromkeys(name for name, _ in missing)]
        words += ["--sizes", *(f"{size}" for size in sorted({size for _, size in missing}))]
        end = time.monotonic() + settings.limit_secs
        try:
            with run.start(words, folder, env) as ranks:
                while ranks.running and time.monotonic() < end:
                    keep(run, out, results)
                    time.sleep(POLL_SECS)
                ranks.wait(max(0.0, end - time.monotonic()))
        except RuntimeError as error:
            mistakes = [line for line in str(error).splitlines() if line.startswith(MISTAKE)]
            if mistakes:
                raise UsageError(mistakes[0].removeprefix(MISTAKE)) from None
            raise
        finally:
            keep(run, out, results)


def keep(run: Run, out: Path, results: Results) -> None:
    """Keeps and prints what is new in the file of a run's ranks, whose last line may not be whole."""
    lines = out.read_text().splitlines(keepends=True) if out.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    about = told[0]["about"] if told else {}
    if told:
        check_place(run, about["nodes"])
    for line in told[1:]:
        unit = unit_of(run, line["operation"], line["bytes"])
        if "left_out" in line and unit not in results.left_out:
            results.leave_out(unit, line["left_out"])
            print(f"# left out: {unit}: {line['left_out']}", flush=True)
        elif "ways" in line and unit not in results.kept:
            kept = results.once(unit, lambda ways=line["ways"]: {"about": about, "ways": ways})
            show(run, line["operation"], line["bytes"], kept, results)


def show(run: Run, operation: str, nbytes: int, told: Mapping[str, Any], results: Results) -> None:
    """Adds the records of one size of an operation, and prints them."""
    found = records(run, told["about"], operation, nbytes, told["ways"])
    print(*lines(results.add(unit_of(run, operation, nbytes), found), width()), sep="\n", flush=True)


def check_place(run: Run, nodes: int) -> None:
    """RuntimeError where mpirun has put ranks on other nodes than it should."""
    there = plan.nodes_of()[0]
    wanted = {ONE_NODE: 1, OVER_TCP: 1, ACROSS_NODES: run.ranks, plan.ALL_NODES: min(there, run.ranks)}
    if nodes != wanted[run.place]:
        raise RuntimeError(f"{run.place}, {run.ranks} ranks: mpirun has put them on {nodes} nodes")


def measure_all(
    all_runs: list[Run],
    settings: Settings,
    args: argparse.Namespace,
    env: Mapping[str, str],
    results: Results,
) -> None:
    """All runs; of one that fails, what it had measured is kept, and the others go on."""
    for run in all_runs:
        what = f"{run.place}, {run.ranks} ranks, {' '.join(run.operations)}: some or all sizes"
        results.attempt(what, lambda run=run: measure(run, settings, args, env, results))


def main() -> int:
    args = arguments()
    settings, env = settings_of(args), ranks_environment(args)
    ranks = sorted(set(args.ranks or [slots()]))
    check_ranks(ranks, args.oversubscribe)
    check_mpirun()
    nodes, ranks_per_node = plan.nodes_of()
    places = tuple(dict.fromkeys(args.places or plan.default_places(nodes)))
    all_runs = plan.runs(places, ranks, args.operations, nodes, ranks_per_node)
    told = {
        "ranks": ranks,
        "places": places,
        "operations": args.operations,
        "sizes": settings.sizes,
        "set": sorted(args.set),
        "gpu": args.gpu,
    }
    with open_results(args, BENCHMARK, told) as results:
        measure_all(all_runs, settings, args, env, results)
        return results.conclude(make_page(results.records, args.quick), args.strict)


if __name__ == "__main__":
    run_main(main)

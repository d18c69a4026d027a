"""Weak and strong scaling of the real training loop, with one rank and with more, and how far it will go.

    python benchmarks/scaling.py                                         # as many ranks as there are cores
    python benchmarks/scaling.py --models resnet50 --data memory hdf5 --gpu      # on the GPUs of this Slurm job
    python benchmarks/scaling.py --ways sync async dedicated             # with a parameter server, and a chief apart
    python benchmarks/scaling.py --job job.yaml                          # a job of your own
    python benchmarks/scaling.py --emulate-step-ms 100 --gradient-mb 1 --ranks 1 2 4 8 --oversubscribe
    python benchmarks/scaling.py --how-many-nodes 0.8                    # the largest number above that efficiency
    python benchmarks/scaling.py --quick                                 # tries it once; the figures mean nothing

Writes records and report to benchmarks/results/scaling_<machine>_<date>. A run that was interrupted goes on where it
was. Needs mpirun and Horovod.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("SLURM_CPUS_PER_TASK", "1"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import yaml
from scale.forecast import Forecast, Measured, curves_in, forecast
from scale.jobs import BENCHMARK, FULL, HDF5, MEMORY, OWN, QUICK, STRONG, SYNC, WAYS, WEAK, plan_variable
from scale.measuring import Curve, check_room, measure_all
from scale.network import BENCHMARK as COLLECTIVES
from scale.network import memory_rate, network_of
from scale.page import answers, make_page
from scale.workloads import WORKLOADS
from support import machine
from support.launch import check_mpirun, check_ranks, here, nodes, powers_up_to, slots, working_parent
from support.records import Record, read_records
from support.results import RECORDS, RESULTS, open_results
from support.usage import EXIT_MISSED, UsageError, make_parser, run_main, tell

from hpc_train.config.run_config import MOST_IN_FLIGHT
from hpc_train.distributed.carrier import NAMES

DEFAULT_MODELS = {True: ("resnet50", "vgg16", "transformer"), False: ("mlp", "cnn")}
"""With GPUs, and without."""
EFFICIENCY = 0.8
AROUND = 8
"""The network is that of messages at most so many times smaller or larger than the gradients."""


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--models", nargs="+", choices=list(WORKLOADS), help="default: mlp cnn, on GPUs the larger ones")
    what.add_argument(
        "--job", type=Path, metavar="JOB.yaml", help="your own job, without hooks, evaluations and exports"
    )
    what.add_argument("--emulate-step-ms", type=float, metavar="T", help="on an emulated device with steps of so long")
    parser.add_argument("--gradient-mb", type=float, default=None, help="of an emulated model (default: 1)")
    parser.add_argument(
        "--steps-in-flight", type=int, metavar="N", help="as run.steps_in_flight (default: 1 where a step is emulated)"
    )
    parser.add_argument("--allreduce", choices=list(NAMES), help="as run.allreduce")
    parser.add_argument("--ranks", nargs="+", type=int, help="that train (default: 1, 2, 4 … up to all slots)")
    parser.add_argument("--kinds", nargs="+", choices=[WEAK, STRONG], default=None, help="default: both")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=["sync"], help="default: sync")
    parser.add_argument("--data", nargs="+", choices=[MEMORY, HDF5], help="default: one batch in memory")
    parser.add_argument("--batch", type=int, help="rows a rank, or of all with strong scaling")
    parser.add_argument(
        "--how-many-nodes", type=float, metavar="E", help=f"that keep this efficiency (default: {EFFICIENCY})"
    )
    parser.add_argument(
        "--collectives", type=Path, metavar="DIR", help="a run of collectives.py to predict from (default: the newest)"
    )
    parser.add_argument("--gpu", action="store_true", help="one GPU a rank, or an error where there are too few")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more ranks than there are slots")
    args = parser.parse_args()
    if args.job is not None and not args.job.is_file():
        parser.error(f"--job: {args.job} is not a file")
    emulated = args.emulate_step_ms is not None
    if min(args.emulate_step_ms if emulated else 1, 1 if args.gradient_mb is None else args.gradient_mb) <= 0:
        parser.error("--emulate-step-ms and --gradient-mb: give numbers above 0")
    if args.gradient_mb is not None and not emulated:
        parser.error("--gradient-mb is that of an emulated model: give --emulate-step-ms, too, or leave it out")
    if (emulated or args.job) and args.data:
        parser.error("--data: a job of your own, and an emulated model, have theirs; leave it out")
    if args.steps_in_flight is not None and not 0 <= args.steps_in_flight <= MOST_IN_FLIGHT:
        parser.error(f"--steps-in-flight: {args.steps_in_flight}; give a number from 0 to {MOST_IN_FLIGHT}")
    if emulated and STRONG in (args.kinds or ()):
        parser.error("--kinds: an emulated step takes the same with any batch, so its scaling is weak")
    if args.how_many_nodes is not None and args.kinds == [STRONG]:
        parser.error("--how-many-nodes is answered for weak scaling: leave --kinds out, or ask for weak, too")
    if args.how_many_nodes is not None and not 0 < args.how_many_nodes <= 1:
        parser.error(f"--how-many-nodes: {args.how_many_nodes}; give an efficiency above 0 and at most 1")
    if args.batch is not None and args.batch < 1:
        parser.error(f"--batch: {args.batch}; give a number from 1 on")
    return args


def curves_of(args: argparse.Namespace, gpus: bool, most: int) -> list[Curve]:
    """What is to be measured, in order."""
    asked, ways = args.ranks is not None, dict.fromkeys(WAYS[way] for way in args.ways)
    workers = sorted(set(args.ranks if asked else powers_up_to(most)))
    points = tuple((way, n) for way in ways for n in workers if asked or n + (way != SYNC) <= most)
    run = (("allreduce", args.allreduce),) if args.allreduce else ()
    if args.emulate_step_ms is not None:
        bytes_, title = round((args.gradient_mb or 1) * 1e6), "emulated model"
        batch = args.batch or 32
        depth = 1 if args.steps_in_flight is None else args.steps_in_flight
        return [Curve(WEAK, "emulated", title, MEMORY, batch, points, args.emulate_step_ms, bytes_, depth, run)]
    if args.job is not None:
        path, name, shared = str(args.job.resolve()), args.job.name, STRONG in (args.kinds or ())
        rows = args.batch or (batch_size(args.job) if shared else None)
        return [
            Curve(
                kind,
                path,
                name,
                OWN,
                rows if kind == STRONG else args.batch,
                points,
                steps_in_flight=args.steps_in_flight,
                run=run,
            )
            for kind in args.kinds or [WEAK]
        ]
    chosen = [WORKLOADS[name] for name in args.models or DEFAULT_MODELS[gpus]]
    return [
        Curve(
            kind,
            w.name,
            w.title,
            data,
            args.batch or (w.gpu_batch if gpus else w.batch),
            points,
            steps_in_flight=args.steps_in_flight,
            run=run,
        )
        for w in chosen
        for data in dict.fromkeys(args.data or [MEMORY])
        for kind in args.kinds or (WEAK, STRONG)
    ]


def batch_size(job: Path) -> int:
    """Of a job file's training data.

    Raises:
        UsageError: It tells none.
    """
    try:
        told = yaml.safe_load(job.read_bytes())["data"]["train"]["batch_size"]
    except (yaml.YAMLError, UnicodeDecodeError, LookupError, TypeError):
        told = None
    if not isinstance(told, int) or told < 1:
        raise UsageError(f"--kinds strong: {job} tells no data.train.batch_size to share out; give --batch")
    return told


def main() -> int:
    args = arguments()
    settings = QUICK if args.quick else FULL
    check_mpirun()
    gpus = machine.gpus()
    if args.gpu and not gpus:
        raise UsageError(
            "--gpu: nvidia-smi finds no GPU here; ask Slurm for some (--gpus-per-node), or leave --gpu out"
        )
    most = min(slots(), len(gpus) * nodes()) if gpus else slots()
    check_ranks(args.ranks or [1], oversubscribe=True)
    curves = curves_of(args, bool(gpus), most)
    ranks = sorted({case.ranks for curve in curves for case in curve.cases()})
    if gpus and max(ranks) > most:
        raise UsageError(f"{max(ranks)} ranks, but a GPU each for {most}: give --ranks, or ask Slurm for more GPUs")
    check_ranks(ranks, args.oversubscribe)
    network = find_network(args.collectives, args.how_many_nodes is not None)
    left_out = {curve.unit: why for curve in curves if (why := check_room(curve, gpus)) is not None}
    for unit, why in left_out.items():
        tell(f"{unit}: left out: {why}")
    told = {**asdict(settings), "gpu": args.gpu, "curves": [asdict(curve) for curve in curves]}
    if args.job is not None:
        told["job"] = sha256(args.job.read_bytes()).hexdigest()
    with (
        open_results(args, BENCHMARK, told) as results,
        tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="scaling-") as name,
    ):
        folder = Path(name)
        env = {**plan_variable(folder), "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
        launch = here(env, allocation=bool(gpus) or "SLURM_JOB_ID" in os.environ)
        for unit, why in left_out.items():
            results.leave_out(unit, why)
        fitting = [curve for curve in curves if curve.unit not in left_out]
        measure_all(fitting, settings, folder, launch, results, args.gpu)
        wanted = args.how_many_nodes or EFFICIENCY
        forecasts, words = forecasts_of(curves_in(results.records), network or (), max(1, most // nodes()), wanted)
        print(*answers(forecasts), sep="\n", end="\n" if forecasts else "")
        page = make_page(results.records, settings, forecasts, words, memory_rate(network or ()))
        code = results.conclude(page, args.strict)
    if args.how_many_nodes is not None and not any(found.answers for found in forecasts):
        tell("--how-many-nodes: no answer, see above")
        return code or EXIT_MISSED
    return code


def find_network(folder: Path | None, needed: bool) -> Sequence[Record] | None:
    """Records of a run of collectives.py: in `folder`, or the newest of this machine; None: there is none.

    Raises:
        UsageError: They cannot be read; or there are none, and they are needed.
    """
    found = sorted(RESULTS.glob(f"{COLLECTIVES}_{machine.slug()}_????-??-??")) if folder is None else [folder]
    if not found:
        why = "there is no run of collectives.py on this machine: make one first, or name its results by --collectives"
        if needed:
            raise UsageError(f"--how-many-nodes: {why}")
        tell(f"nothing will be predicted: {why}")
        return None
    path = found[-1] / RECORDS
    try:
        return read_records(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--collectives: {error}") from None


def forecasts_of(
    curves: Sequence[Measured], network: Sequence[Record], ranks_per_node: int, wanted: float
) -> tuple[list[Forecast], str]:
    """What the model says of each curve, and the links in words."""
    found, words = [], ""
    for curve in curves:
        nbytes = curve.alone.config["gradient_bytes"]
        try:
            fitted = network_of(network, ranks_per_node, (nbytes / AROUND, nbytes * AROUND))
        except ValueError as error:
            tell(f"{curve.unit}: nothing is predicted: {error}")
            continue
        found.append(forecast(curve, fitted, wanted, nodes()))
        words = fitted.words
    return found, words


if __name__ == "__main__":
    run_main(main)

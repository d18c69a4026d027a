"""Whether training holds on the GPUs of a site: correctness, peers, scaling, the device, and your own job.

    python benchmarks/gpu.py                             # on all GPUs that there are
    python benchmarks/gpu.py --job job.yaml              # your own job, too: GPU against CPU, and time to accuracy
    python benchmarks/gpu.py --job job.yaml --parts accuracy --target-metric accuracy --target-value 0.85
    python benchmarks/gpu.py --parts correctness allreduce
    python benchmarks/gpu.py --cpu --quick               # tries it once, on the cores; the figures mean nothing

Without GPUs all parts run on the cores, with something that stands in for a GPU, and say so. A part that fails is named
in the report, and the others go on. Writes records and report to benchmarks/results/gpu_<machine>_<date>. A run that
was interrupted goes on where it was. Needs mpirun; Horovod where there is more than one rank.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("SLURM_CPUS_PER_TASK", "1"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import peers.settings
import scale.jobs
from acceptance import accuracy, correctness, device, sample
from acceptance import peers as rivals
from acceptance import ranks as many
from acceptance.own_job import OwnJob, check_rate, read_job
from acceptance.page import whole_page
from acceptance.settings import BENCHMARK, Settings, Site
from support import machine
from support.launch import check_mpirun, check_ranks, environment, nodes, powers_up_to, slots, working_parent
from support.page import Report
from support.records import Record
from support.results import open_results
from support.usage import UsageError, in_short, make_parser, run_main, tell

FULL = Settings(
    steps=20,
    batch=64,
    rows=16_384,
    timed_steps=200,
    passes=2,
    sample_steps=300,
    evaluations=20,
    scale=replace(scale.jobs.FULL, passes=2),
    peers=replace(peers.settings.FULL, pairs=8, passes=2),
    limit_secs=600.0,
)
QUICK = Settings(
    steps=3,
    batch=16,
    rows=1_024,
    timed_steps=12,
    passes=1,
    sample_steps=20,
    evaluations=4,
    scale=scale.jobs.QUICK,
    peers=peers.settings.QUICK,
    limit_secs=180.0,
)
DEVICE_PROBE = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
PROBE_SECS = 120.0


@dataclass(frozen=True)
class Part:
    """A part: what it measures into the site's results, and the report of its records. `own`: needs --job."""

    measure: Callable[[Site], None]
    page: Callable[[Sequence[Record], Site], Report]
    own: bool = False


def parts_of(job: OwnJob | None, aim: accuracy.Aim | None) -> Mapping[str, Part]:
    """All parts by name, in the order in which they run; those of your own job where there is one."""
    found = {
        "correctness": Part(correctness.measure, correctness.page),
        "peers": Part(rivals.measure, rivals.page),
        "scaling": Part(many.measure_scaling, many.scaling_page),
        "gap": Part(device.measure_gap, device.gap_page),
        "input": Part(device.measure_input, device.input_page),
        "precision": Part(device.measure_precision, device.precision_page),
        "allreduce": Part(many.measure_allreduce, many.allreduce_page),
    }
    if job is not None:
        found["sample"] = Part(partial(sample.measure, job), sample.page, own=True)
        if aim is not None:
            found["accuracy"] = Part(partial(accuracy.measure, job, aim), accuracy.page, own=True)
    return found


PARTS = ("correctness", "peers", "scaling", "gap", "input", "precision", "allreduce", "sample", "accuracy")
OF_JOB = ("sample", "accuracy")


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, help="some of it (default: all; sample and accuracy with --job)"
    )
    parser.add_argument("--ranks", nargs="+", type=int, help="that train (default: 1, 2, 4 … up to all slots)")
    parser.add_argument("--cpu", action="store_true", help="use no GPU, even where there are some")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more ranks than there are slots")
    own = parser.add_argument_group("your own job")
    own.add_argument("--job", type=Path, metavar="JOB.yaml", help="without its hooks, early stopping and exports")
    own.add_argument(
        "--rate",
        metavar="KEY",
        default="params.learning_rate",
        help="the job's key that holds its learning rate, a number (default: %(default)s)",
    )
    own.add_argument(
        "--rates", nargs="+", choices=list(accuracy.RATES), default=list(accuracy.RATES), help="default: all"
    )
    own.add_argument("--target-metric", metavar="NAME", help="of its evaluation (default: run.best_metric)")
    own.add_argument("--target-value", type=float, metavar="X", help="default: near the best that one rank reaches")
    own.add_argument(
        "--target-mode", choices=["min", "max"], help="whether less or more is better (default: the job's)"
    )
    own.add_argument("--max-steps", type=int, metavar="N", help="of each run to a metric (default: train.max_steps)")
    own.add_argument("--warm-up-steps", type=int, metavar="N", help="default: a 20th of the steps")
    args = parser.parse_args()
    if args.job is not None and not args.job.is_file():
        parser.error(f"--job: {args.job} is not a file")
    asked = [part for part in OF_JOB if part in (args.parts or ())]
    if asked and args.job is None:
        parser.error(f"--parts {' '.join(asked)}: is about a job of your own; give --job JOB.yaml, too")
    return args


def usable_gpus(refused: bool) -> tuple[int, str]:
    """The GPUs of this node that TensorFlow uses, and why there are none.

    Raises:
        UsageError: There are some, and TensorFlow uses none of them.
    """
    if refused:
        return 0, "--cpu was given"
    there = len(machine.gpus())
    if not there:
        return 0, "nvidia-smi finds none that this process may use"
    try:
        env = environment(allocation=True)
        done = subprocess.run(
            [sys.executable, "-c", DEVICE_PROBE], env=env, capture_output=True, text=True, timeout=PROBE_SECS
        )
        seen = int(done.stdout.split()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        seen = 0
    if not seen:
        raise UsageError(
            f"nvidia-smi finds {there} GPUs here, but TensorFlow uses none: install tensorflow[and-cuda], not "
            "tensorflow-cpu, and see hpc-train doctor; or give --cpu, to see all parts on the cores"
        )
    return min(there, seen), ""


def own_job(args: argparse.Namespace, settings: Settings) -> tuple[OwnJob | None, accuracy.Aim | None]:
    """The job of --job, and what it is to reach, where that is asked for.

    Raises:
        UsageError: The job file has mistakes, or its learning rate cannot be changed.
    """
    if args.job is None:
        return None, None
    job = read_job(args.job, args.rate)
    if args.parts and "accuracy" not in args.parts:
        return job, None
    if any(rate != "given" for rate in args.rates):
        check_rate(job)
    aim = accuracy.aim_of(
        job, settings.evaluations, args.target_metric, args.target_mode, args.target_value, args.rates,
        args.max_steps, args.warm_up_steps,
    )  # fmt: skip
    return job, aim


def main() -> int:
    args = arguments()
    settings = QUICK if args.quick else FULL
    job, aim = own_job(args, settings)
    check_mpirun()
    check_ranks(args.ranks or [1], oversubscribe=True)
    gpus, why_none = usable_gpus(args.cpu)
    most = min(slots(), gpus * nodes()) if gpus else slots()
    ranks = sorted(set(args.ranks or powers_up_to(most)))
    if gpus and ranks[-1] > most:
        raise UsageError(f"{ranks[-1]} ranks, but a GPU each for {most}: give --ranks, or ask Slurm for more GPUs")
    check_ranks(ranks, args.oversubscribe)
    allocation = bool(gpus) or "SLURM_JOB_ID" in os.environ
    parts = {name: part for name, part in parts_of(job, aim).items() if not args.parts or name in args.parts}
    told = {**asdict(settings), "ranks": ranks, "gpus": gpus, "parts": list(parts)}
    if job is not None:
        told |= {"job": sha256(args.job.read_bytes()).hexdigest(), "aim": None if aim is None else asdict(aim)}
    with (
        open_results(args, BENCHMARK, told) as results,
        tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="gpu-") as name,
    ):
        env = {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"], **({} if gpus else {"CUDA_VISIBLE_DEVICES": "-1"})}
        here_at_most = min(slots(one_node=True), gpus) if gpus else max(slots(one_node=True), ranks[-1])
        site = Site(gpus, tuple(ranks), here_at_most, Path(name), env, allocation, settings, results)
        pages = [page for name, part in parts.items() if (page := run_part(name, part, site)) is not None]
        return results.conclude(whole_page(pages, gpus, ranks[-1], why_none), args.strict)


def run_part(name: str, part: Part, site: Site) -> Report | None:
    """Measures a part; its report, None where it has no records. Whatever it raises is noted, and the others go on."""
    tell(f"part {name}")
    before = len(site.results.records)
    try:
        part.measure(site.of_part(name))
    except Exception as error:  # a part of its own: what went wrong is in the report, and the exit code of --strict
        kind = "" if isinstance(error, RuntimeError | UsageError) else f"{type(error).__name__}: "
        tell(f"{name}: left out: {kind}{error}")
        site.results.leave_out(name, f"{kind}{in_short(error)}")
        site.results.failed = True
    records = site.results.records[before:]
    return part.page(records, site) if records else None


if __name__ == "__main__":
    run_main(main)

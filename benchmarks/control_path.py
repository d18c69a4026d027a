"""The control path of a job over its ranks: join, plan, build, steps, records, checkpoints, the end, the stall watch.

    python benchmarks/control_path.py              # 2 to 128 ranks on this machine; about ten minutes on 2 cores
    python benchmarks/control_path.py --ranks 8 64
    python benchmarks/control_path.py --quick      # tries everything once; the figures mean nothing

Everything is the package's own but TensorFlow, for which numpy stands in (control_paths/stand_in.py): so a rank takes
50 MB. Ranks share cores, as a job's never should; see the report for how that is corrected. Counts of ranks that would
leave less than 4 GB of memory free are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np
from control_paths.page import BENCHMARK, make_page, records, stall_records
from control_paths.stand_in import CLASSES
from support.launch import Ranks, check_mpirun
from support.results import Results, open_results
from support.usage import MissingError, UsageError, make_parser, run_main, tell

from hpc_train.data.memory import available_bytes

RANKS = (2, 4, 8, 16, 32, 64, 128)
SHARDS, ROWS_OF_SHARD, FEATURES = 16, 256, 8
RANK_BYTES, LEFT_BYTES = 70 << 20, 4 << 30
"""What a rank takes at most, and what is to stay free."""
SHOWN_FOLDERS = ("", "logs", "train", "eval", "ranks", "checkpoints")
STALL_EXIT = 6


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        ranks: Counts of them. steps: of each run. repeats: runs of each count. stall_secs: stall_timeout_secs.
        stalled: Counts of ranks that are stalled.
    """

    ranks: tuple[int, ...]
    stalled: tuple[int, ...]
    steps: int = 40
    repeats: int = 2
    stall_secs: float = 20.0
    start_secs_a_rank: float = 4.0
    """A limit for what is started, beside a minute."""


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N", help="counts of ranks (default: 2 4 8 … 128)")
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> Settings:
    """How much is measured.

    Raises:
        UsageError: A count below 1.
    """
    ranks = tuple(sorted(set(args.ranks or ((2, 4) if args.quick else RANKS))))
    if ranks[0] < 1:
        raise UsageError(f"--ranks: {ranks[0]}: give numbers from 1 on")
    if max(ranks) * 4 > SHARDS * ROWS_OF_SHARD:
        raise UsageError(f"--ranks: {max(ranks)}: the data has batches for {SHARDS * ROWS_OF_SHARD // 4} ranks at most")
    stalled = tuple(dict.fromkeys((8 if 8 in ranks else ranks[0], ranks[-1])))
    if args.quick:
        return Settings(ranks, ranks[-1:], steps=4, repeats=1, stall_secs=1.0)
    return Settings(ranks, stalled)


def make_shards(folder: Path) -> None:
    """Small files of features and labels."""
    numbers = np.random.default_rng(1)
    for shard in range(SHARDS):
        with h5py.File(folder / f"train-{shard:02}.h5", "w") as file:
            file["features"] = numbers.random((ROWS_OF_SHARD, FEATURES), np.float32)
            file["labels"] = numbers.integers(0, CLASSES, ROWS_OF_SHARD)


def check_room(ranks: int) -> None:
    """MissingError where so many ranks would take what is to stay free."""
    free = available_bytes()
    if ranks * RANK_BYTES + LEFT_BYTES > free:
        raise MissingError(f"{ranks} ranks and {LEFT_BYTES >> 30} GiB that stay free do not fit into {free >> 30} GiB")


def run_job(ranks: int, settings: Settings, data: Path, stall: bool = False) -> dict[str, Any]:
    """One job of so many ranks: what each rank tells, and what is written in its job-dir.

    Raises:
        MissingError: There is no room for them. RuntimeError: The job fails.
    """
    check_room(ranks)
    tell(f"{ranks} ranks{', stalled' if stall else ''}")
    with tempfile.TemporaryDirectory(dir=data, prefix="job-") as temporary:
        folder = Path(temporary)
        out, job_dir = folder / "out", folder / "job"
        out.mkdir()
        words = ["-m", "control_paths.program", "--job-dir", f"{job_dir}", "--shards", f"{data}/train-*.h5"]
        words += ["--out", f"{out}", "--steps", f"{settings.steps}"]
        words += ["--stall", f"{settings.stall_secs}"] if stall else []
        limit_secs = 60 + settings.start_secs_a_rank * ranks + 3 * settings.stall_secs * stall
        with Ranks(ranks, words, folder) as started:
            try:
                started.wait(limit_secs)
            except RuntimeError:
                if not stall or not (out / "verdict.json").exists():  # else it is to end with code 6
                    raise
        told = [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
        found = {"ranks": told, "written": written(job_dir)}
        return {**found, "verdict": json.loads((out / "verdict.json").read_text())} if stall else found


def written(job_dir: Path) -> dict[str, int]:
    """How many files folders of the job-dir have, with those below, and bytes of what is written again and again."""
    found = {f"files in {name or 'job-dir'}": _files(job_dir / name) for name in SHOWN_FOLDERS}
    for name in ("status.json", "environment.json", "data.json"):
        found[f"bytes of {name}"] = (job_dir / name).stat().st_size
    lines = [line for line in (job_dir / "metrics.jsonl").read_bytes().splitlines() if b'"kind": "train"' in line]
    found["bytes of a record in metrics.jsonl"] = max(map(len, lines), default=0)
    saved = sorted((job_dir / "checkpoints").glob("step-*"))
    found["bytes of a checkpoint"] = sum(file.stat().st_size for file in saved[-1].iterdir()) if saved else 0
    return found


def _files(folder: Path) -> int:
    return sum(file.is_file() for file in folder.rglob("*")) if folder.is_dir() else 0


def measure_all(settings: Settings, parent: Path | None, results: Results) -> None:
    """All counts of ranks, `repeats` times there and back, so that what drifts meets them alike."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="control-path-") as temporary:
        data = Path(temporary)
        make_shards(data)
        ways = {f"{n} ranks": partial(run_job, n, settings, data) for n in settings.ranks}
        jobs: Mapping[str, list[Any]] = results.turns("job", ways, settings.repeats)
        for n in settings.ranks:
            if found := jobs.get(f"{n} ranks"):
                results.add(f"{n} ranks", records(n, found))
        for n in settings.stalled:
            what = f"{n} ranks, stalled"
            told = results.attempt(what, partial(results.once, what, partial(run_job, n, settings, data, stall=True)))
            if told is not None:
                results.add(what, stall_records(n, settings.stall_secs, told))


def main() -> int:
    args = arguments()
    check_mpirun()
    settings = settings_of(args)
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        measure_all(settings, args.dir, results)
        return results.conclude(make_page(results.records, len(os.sched_getaffinity(0))), args.strict)


if __name__ == "__main__":
    run_main(main)

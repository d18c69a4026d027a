"""One rank of a job in which nothing is computed: TensorFlow is stood in for, see stand_in.py.

    mpirun -np 8 python -m control_paths.program --job-dir DIR --shards 'DIR/train-*.h5' --steps 20 --out DIR

Each rank writes OUT/rank-<r>.json: what each phase took, and its memory once it is trained. With --stall, no rank takes
another step after the first one, and the watchdog ends the job; the rank that judges writes OUT/verdict.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from control_paths.meter import Meter, MeteredComm, memory

if TYPE_CHECKING:
    from control_paths.stand_in import Model

METER = Meter("start")
"""Made before numpy and the package are imported, so that this is counted."""
BATCH, SAVES, RECORDS = 4, 2, 4
"""Rows of a rank's batch; checkpoints, and records, of a run."""
POLL_SECS = 0.2
DUMP_SECS = 20.0
"""At most what the other ranks of a stalled job have to write what they have counted."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stall", type=float, metavar="SECS", help="stall, with this stall_timeout_secs")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def model_fn() -> Model:
    from control_paths.stand_in import Model

    return Model()


def train(args: argparse.Namespace) -> None:
    """The job, through the package's own entrance."""
    from hpc_train.config.estimator import Estimator
    from hpc_train.config.hdf5_input import HDF5Input
    from hpc_train.config.run_config import RunConfig
    from hpc_train.config.specs import EvalSpec, TrainSpec
    from hpc_train.training.trainer import train_and_evaluate

    config = RunConfig(
        args.job_dir,
        save_checkpoints_steps=max(1, args.steps // SAVES),
        save_summary_steps=max(1, args.steps // RECORDS),
        check_replicas_steps=max(1, args.steps // SAVES),
        log_step_count_steps=args.steps,
        tf_random_seed=1,
        stall_timeout_secs=args.stall or 600.0,
    )
    source = HDF5Input(args.shards, batch_size=BATCH)
    evaluation = EvalSpec(HDF5Input(args.shards, batch_size=BATCH), steps=8, start_delay_secs=0.0, throttle_secs=0.0)
    train_and_evaluate(Estimator(model_fn, config), TrainSpec(source, max_steps=args.steps), evaluation)


def watch_phases(args: argparse.Namespace) -> None:
    """Has the meter know which phase a job is in."""
    from hpc_train.distributed import startup
    from hpc_train.engine.lifecycle import Lifecycle
    from hpc_train.engine.loop import TrainingLoop
    from hpc_train.model.model_state import ModelState
    from hpc_train.training import trainer

    start_mpi = startup._start_mpi

    def metered(*given: Any) -> Any:
        comm = start_mpi(*given)
        return comm and MeteredComm(comm, METER)

    startup._start_mpi = metered  # type: ignore[assignment]
    METER.timed(trainer, "join_world", "join")
    METER.timed(trainer, "settle_job_dir", "plan")
    METER.timed(trainer, "plan", "plan")
    open_all = trainer.build

    @contextmanager
    def build(*given: Any) -> Iterator[Any]:
        METER.next("build")
        with open_all(*given) as context:
            METER.next("first step")
            yield context
        METER.next("end")

    trainer.build = build  # type: ignore[assignment]
    after_step = Lifecycle.after_step

    @wraps(after_step)
    def stepped(self: Lifecycle, step: int, loss: float) -> None:
        after_step(self, step, loss)
        if step == 1:
            METER.next("steps")
            if args.stall:
                stall(self._world.rank, args.out)

    Lifecycle.after_step = stepped  # type: ignore[method-assign]
    report = TrainingLoop._report

    @wraps(report)
    def reported(self: TrainingLoop, *given: Any, **named: Any) -> None:
        if self._step % self._config.save_summary_steps:
            return report(self, *given, **named)
        with METER.phase("record"):
            return report(self, *given, **named)

    TrainingLoop._report = reported  # type: ignore[method-assign]
    METER.timed(ModelState, "compare", "compare")
    METER.timed(Lifecycle, "save", "checkpoint")
    METER.timed(Lifecycle, "_evaluate", "evaluation")
    finish = Lifecycle.finish

    @wraps(finish)
    def finished(self: Lifecycle, *given: Any) -> Any:
        with METER.phase("measuring"):
            note_memory(self._world)
        METER.next("end")
        return finish(self, *given)

    Lifecycle.finish = finished  # type: ignore[method-assign]


FOUND: dict[str, Any] = {}


def note_memory(world: Any) -> None:
    """Notes it while all ranks are there: what they share is divided by their number."""
    FOUND["rank"] = world.rank
    if world.comm is not None:
        world.comm.Barrier()
    FOUND["memory"] = memory()
    if world.comm is not None:
        world.comm.Barrier()


def watch_stall(args: argparse.Namespace) -> None:
    """Has the rank that judges note what that took, before it ends the job as it does."""
    from hpc_train.resilience import stall_folder, watchdog

    took: dict[str, float] = {}

    def noted(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        @wraps(original)
        def call(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return original(*given, **named)
            finally:
                took[name] = max(took.get(name, 0.0), time.perf_counter() - begun)

        setattr(owner, name, call)

    for name in ("report", "lower", "read"):
        noted(stall_folder.StallFolder, name)
    real = watchdog.end_job

    def end_job(world: Any, job_dir: Path, failure: Any) -> Any:
        end = real(world, job_dir, failure)

        def told(message: str, blamed: int | None) -> None:
            folder = failure.path.with_name(f"stall-{failure.path.stem.removeprefix('failure-')}")
            sizes = [file.stat().st_size for file in folder.glob("*.json")]
            about = {"message": message, "took": took, "judge": world.rank, "files": len(sizes), "bytes": sum(sizes)}
            write(args.out / "verdict.json", about)
            last = time.monotonic() + DUMP_SECS
            while len(list(args.out.glob("rank-*.json"))) < world.size and time.monotonic() < last:
                time.sleep(POLL_SECS)
            end(message, blamed)

        return told

    watchdog.end_job = end_job


def stall(rank: int, out: Path) -> None:
    """Makes no progress until the watchdog ends the job; writes what it has cost when there is a verdict."""
    while not (out / "verdict.json").exists():
        time.sleep(POLL_SECS)
    write(out / f"rank-{rank}.json", {"rank": rank, "phases": METER.told()})
    while True:
        time.sleep(POLL_SECS)


def write(path: Path, value: Any) -> None:
    """In one rename, since others wait for it."""
    path.with_suffix(".tmp").write_text(json.dumps(value))
    os.replace(path.with_suffix(".tmp"), path)


def main() -> None:
    from control_paths.stand_in import install

    args = arguments()
    install()
    watch_phases(args)
    if args.stall:
        watch_stall(args)
    train(args)
    write(args.out / f"rank-{FOUND['rank']}.json", {**FOUND, "phases": METER.told()})


if __name__ == "__main__":
    main()

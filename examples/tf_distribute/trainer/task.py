"""Fits a line by one of TensorFlow's own strategies, whichever the job's cluster is for.

With `ps` in it, the chief's ParameterServerStrategy; else MultiWorkerMirroredStrategy. Saved every SAVE_STEPS steps,
and resumed from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

SAVE_STEPS = 50
STOPPED = 3
ROWS, SLOPE, SHIFT, RATE = 64, 3.0, -1.0, 0.2


def main() -> int:
    """Trains, and returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, role, index = resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id
    if "ps" in cluster and role in ("ps", "worker"):
        tf.distribute.Server(resolver.cluster_spec(), job_name=role, task_index=index).join()  # the job ends it
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(3))
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(4))
    if "ps" in cluster:
        strategy: tf.distribute.Strategy = tf.distribute.ParameterServerStrategy(resolver)
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    saves = role == "chief" or (role == "worker" and index == 0 and "chief" not in cluster)
    return train(strategy, "ps" in cluster, saves, args.job_dir, args.steps, asked)


def train(
    strategy: tf.distribute.Strategy, has_servers: bool, saves: bool, job_dir: Path, steps: int, asked: list[int]
) -> int:
    """Trains to `steps`, over all runs; 3 or 4 where a signal has come and it has saved."""
    with strategy.scope():
        slope, shift = tf.Variable(0.0), tf.Variable(0.0)
        saved_step = tf.Variable(0, dtype=tf.int64, trainable=False)
    # All workers save; each but one into a folder of its own, which nobody reads.
    folder = job_dir / "checkpoints" if saves else Path(tempfile.mkdtemp())
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(slope=slope, shift=shift, step=saved_step), str(folder), max_to_keep=2
    )
    if newest := tf.train.latest_checkpoint(str(job_dir / "checkpoints")):
        manager.checkpoint.restore(newest).assert_consumed()

    def replica_step(stop: tf.Tensor) -> tf.Tensor:
        x = tf.linspace(-1.0, 1.0, ROWS)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((slope * x + shift - (SLOPE * x + SHIFT)) ** 2)
        reduced = tf.distribute.get_replica_context().all_reduce("SUM", [*tape.gradient(loss, (slope, shift)), stop])
        for weight, gradient in zip((slope, shift), reduced, strict=False):
            weight.assign_sub(RATE * gradient / strategy.num_replicas_in_sync)
        return reduced[2]

    @tf.function
    def step_of_all(stop: tf.Tensor) -> tf.Tensor:
        return strategy.run(replica_step, (stop,))

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy) if has_servers else None
    step = int(saved_step.numpy())
    while step < steps:
        if coordinator is not None:
            coordinator.schedule(step_of_all, (0.0,))
            coordinator.join()
            stops = bool(asked)
        else:
            stops = bool(step_of_all(float(bool(asked))) > 0)  # in the same step on all workers
        step += 1
        if step % SAVE_STEPS == 0 or step == steps or stops:
            saved_step.assign(step)
            manager.save()
        if stops:
            return asked[0] if asked else STOPPED
    if saves:
        found = {"step": step, "slope": float(slope.numpy()), "shift": float(shift.numpy())}
        (job_dir / "result.json").write_text(json.dumps(found))
        print(f"trained to step {step}: {found}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Trains a table in parts and a whole one with its dense allreduce, in turns; the chief writes the seconds. A program.

python -m divided.embedding_program OPTIMIZER ROWS IDS STEPS PASSES OUT
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.timing import there_and_back

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.startup import join_world

WIDTH = 64
SHARDED, DENSE = "ShardedEmbedding", "keras.layers.Embedding"


def main(optimizer: str, rows: int, ids: int, steps: int, passes: int, out: Path) -> None:
    """Medians are for who reads `out`: {"secs": {way: seconds a step of each time}, "bytes": {way: of the table}}."""
    world = join_world()
    set_up_tensorflow(world)
    import keras
    import tensorflow as tf

    from hpc_train.distributed.allreduce import GradientAllreduce
    from hpc_train.distributed.carrier import carrier_of, collectives_by
    from hpc_train.distributed.exchange import exchanging
    from hpc_train.distributed.groups import Groups
    from hpc_train.distributed.mesh import Mesh
    from hpc_train.distributed.optimizer_trials import leaves_rows
    from hpc_train.distributed.placement import placed
    from hpc_train.distributed.share import averaged_over
    from hpc_train.optimizers.fused import fused_updates
    from hpc_train.parallel import ShardedEmbedding

    allreduce = GradientAllreduce(collectives_by(carrier_of(world), world))

    def model_of(way: str) -> keras.Model:
        given = keras.Input((), dtype="int64")
        table = (ShardedEmbedding if way == SHARDED else keras.layers.Embedding)(rows, WIDTH)
        hidden = keras.layers.Dense(64, "relu")(table(given))
        return keras.Model(given, keras.layers.Dense(1)(hidden))

    def step_of(model: keras.Model) -> Callable[[Any], Any]:
        own = keras.optimizers.get(optimizer)
        variables, as_rows = model.trainable_variables, leaves_rows(own)
        own.build(variables)

        @tf.function(autograph=False)
        def step(batch: Any) -> Any:
            with tf.GradientTape() as tape, exchanging(Groups.of(allreduce.collectives)):
                loss = tf.reduce_mean(tf.square(model(batch) - 1.0))
            gradients = dict(enumerate(tape.gradient(loss, variables)))
            apart = [k for k, v in enumerate(variables) if averaged_over(v) == "alone"]
            found = {k: gradients[k] if as_rows else tf.convert_to_tensor(gradients[k]) for k in apart}
            others = [k for k in gradients if k not in found]
            means, _ = allreduce.average([tf.convert_to_tensor(gradients[k]) for k in others], [])
            found |= dict(zip(others, means, strict=True))
            with fused_updates(own):
                own.apply([found[k] for k in sorted(found)], variables)
            return loss

        return step

    steps_of, nbytes = {}, {}
    for way in (SHARDED, DENSE):
        with placed(Mesh(world.size, 1, world.rank)):
            model = model_of(way)
        table = model.trainable_variables[0]
        nbytes[way] = int(tf.size(table.value)) * 4
        steps_of[way] = step_of(model)
    random = tf.random.Generator.from_seed(world.rank)
    batches = [random.uniform([ids], 0, rows, tf.int64) for _ in range(8)]
    secs: dict[str, list[float]] = {way: [] for way in steps_of}
    for step in steps_of.values():
        float(step(batches[0]))
    for way in there_and_back(list(steps_of), passes):
        world.each(lambda: None)
        begun = time.perf_counter()
        for number in range(steps):
            loss = steps_of[way](batches[number % len(batches)])
        float(loss)
        secs[way].append((time.perf_counter() - begun) / steps)
    if world.is_chief:
        out.write_text(json.dumps({"secs": secs, "bytes": nbytes}))
    world.wait_asleep()


if __name__ == "__main__":
    name, *counts, path = sys.argv[1:]
    main(name, *map(int, counts), Path(path))

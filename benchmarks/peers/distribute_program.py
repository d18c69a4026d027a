"""One worker of tf.distribute.MultiWorkerMirroredStrategy with a loop of its own, as TensorFlow's guide has it.

TF_CONFIG=… python -m peers.distribute_program --model "MLP 1.9 M" --folder DIR --warm-up 100 --steps 1000 --out FILE
"""

from __future__ import annotations

import argparse
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from peers.models import build_model, load_batches
from peers.plain_loop import dataset_of
from peers.plain_program import set_threads
from peers.settings import BATCH
from peers.told import LAST_LOSSES, Told, Took, write_told


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="with the shards")
    parser.add_argument("--warm-up", type=int, required=True, help="steps that are not counted")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="written by the first worker")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    set_threads()
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    rank, size = json.loads(os.environ["TF_CONFIG"])["task"]["index"], strategy.num_replicas_in_sync
    batches = load_batches(args.folder, args.model, rank, size, BATCH)
    dataset = strategy.distribute_datasets_from_function(lambda context: dataset_of(*batches))
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model: Any = build_model({"model": args.model})
        model.optimizer.build(model.trainable_variables)

    def train(batch: Any) -> tf.Tensor:
        x, y = batch
        with tf.GradientTape() as tape:
            part = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))  # Keras has divided it by the replicas
        gradients = tape.gradient(part, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))  # sums over them
        return part * size

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        return strategy.run(train, args=(next(iterator),))

    iterator = iter(dataset)
    first = float(step(iterator))
    last: deque[tf.Tensor] = deque(maxlen=LAST_LOSSES)
    begun = Took.now()
    for number in range(args.warm_up + args.steps):
        if number == args.warm_up:
            begun = Took.now()
        last.append(step(iterator))
    float(last[-1])
    took = Took.until_now(begun)
    losses = first, float(np.mean([float(loss) for loss in last]))
    if rank == 0:
        write_told(args.out, [Told.of(args.steps, [took], losses, BATCH * size)])


if __name__ == "__main__":
    main()

"""The rivals' loops: as somebody would write them by hand, Keras fit, tf.distribute; nothing of hpc_train in them."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from peers.measurement import LAST_LOSSES, Took


def dataset_of(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Batches that lie in memory, over and over in the same order, two of them taken out ahead of their use."""
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().prefetch(2)


def take_gpu(number: int) -> bool:
    """Leaves this process the GPU of that number among those of the node, where there are any; whether there are."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        own = gpus[number % len(gpus)]
        tf.config.set_visible_devices(own, "GPU")
        tf.config.experimental.set_memory_growth(own, True)
    return bool(gpus)


class Loop:
    """Calls `step`, which trains on the next batch and returns its loss.

    Attributes:
        losses: The first step's, and the mean of the last ones.
    """

    def __init__(self, step: Callable[[], tf.Tensor]) -> None:
        self._step = step
        self._first: tf.Tensor | None = None
        self._last: deque[tf.Tensor] = deque(maxlen=LAST_LOSSES)

    def run(self, warm_up: int, steps: int) -> Took:
        """Makes `warm_up` steps, then so many more; returns what these took. Collective with several ranks."""
        self._go(warm_up)
        begun = Took.now()
        self._go(steps)
        return Took.now().since(begun)

    def _go(self, steps: int) -> None:
        last, step = self._last, self._step
        for _ in range(steps):
            last.append(step())
            if self._first is None:
                self._first = last[0]
        if last:
            float(last[-1])  # is there

    @property
    def losses(self) -> tuple[float, float]:
        assert self._first is not None, "no step was made"
        return float(self._first), float(np.mean([float(loss) for loss in self._last]))


def plain_loop(model: Any, dataset: tf.data.Dataset, horovod: Any = None) -> Loop:
    """Trains `model` on this rank, averaging gradients by one grouped allreduce a step, as Horovod's guide has it.

    Args:
        horovod: Horovod's TensorFlow module, started; None: this rank trains by itself, without an allreduce.
    """
    optimizer, variables, batches = model.optimizer, model.trainable_variables, iter(dataset)
    optimizer.build(variables)
    if horovod is not None:
        horovod.broadcast_variables([v.value for v in model.variables], root_rank=0)

    @tf.function
    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        gradients = tape.gradient(loss, variables)
        if horovod is not None:
            gradients = horovod.grouped_allreduce(gradients, op=horovod.Average)
        optimizer.apply(gradients, variables)
        return loss

    return Loop(lambda: train(*next(batches)))


def distributed_loop(
    make_model: Callable[[], Any], load: Callable[[int, int], tuple[np.ndarray, np.ndarray]]
) -> tuple[Loop, int, int]:
    """One worker of tf.distribute.MultiWorkerMirroredStrategy, as TensorFlow's guide has it; its rank, and how many.

    TF_CONFIG names the workers. `load`: the batches of a rank of so many. By NCCL on GPUs, one of which each worker
    has; else in a ring.
    """
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    ways = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=ways.NCCL if take_gpu(rank) else ways.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    size = strategy.num_replicas_in_sync
    batches = load(rank, size)
    iterator = iter(strategy.distribute_datasets_from_function(lambda context: dataset_of(*batches)))
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = make_model()
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

    return Loop(lambda: step(iterator)), rank, size


class KerasFit:
    """Trains `model` by fit, without a progress bar and without metrics, timed between two of its batches. Local.

    Without a GPU also without XLA: with it steps of these models take 1.7 to 3 times as long on a processor.

    Attributes:
        losses: The mean of the first call, and of the last one.
    """

    def __init__(self, model: keras.Model, dataset: tf.data.Dataset) -> None:
        if not tf.config.list_physical_devices("GPU"):
            model.jit_compile = False
        self._model, self._dataset = model, dataset
        self._losses: list[float] = []

    def run(self, warm_up: int, steps: int) -> Took:
        """Fits `warm_up` steps, then so many more, and one; returns what the second part took."""
        took: dict[int, Took] = {}

        def begin(batch: int, logs: Any = None) -> None:
            if batch in (warm_up, warm_up + steps):
                took[batch] = Took.now()

        # Only the beginning of a batch is asked for: one at the end of batches has Keras fetch the logs each time.
        clock = keras.callbacks.LambdaCallback(on_train_batch_begin=begin)
        batches = {"epochs": 1, "steps_per_epoch": warm_up + steps + 1, "shuffle": False}
        done = self._model.fit(self._dataset, **batches, callbacks=[clock], verbose=0)
        self._losses.append(float(done.history["loss"][0]))
        return took[warm_up + steps].since(took[warm_up])

    @property
    def losses(self) -> tuple[float, float]:
        assert self._losses, "no step was made"
        return self._losses[0], self._losses[-1]

"""Evaluates a model whose table is spread over ranks, of which each has another number of batches, some none."""

from typing import Any

import numpy as np

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.startup import join_world

world = join_world()
set_up_tensorflow(world)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpc_train.config.specs import EvalSpec  # noqa: E402
from hpc_train.data.loading.batch_source import ReadResources  # noqa: E402
from hpc_train.data.loading.tf_dataset import InputContext, refuse_name  # noqa: E402
from hpc_train.distributed.carrier import collectives_by  # noqa: E402
from hpc_train.distributed.groups import Groups  # noqa: E402
from hpc_train.distributed.mesh import Mesh  # noqa: E402
from hpc_train.distributed.placement import placed  # noqa: E402
from hpc_train.evaluation.evaluator import Evaluator  # noqa: E402
from hpc_train.parallel import ShardedEmbedding  # noqa: E402

groups = Groups.of(collectives_by("mpi", world))
random = np.random.default_rng(0)
BATCHES = [(random.integers(0, 9, (rows, 2)), random.normal(size=(rows, 1)).astype("f4")) for rows in (4, 4, 4, 2)]


class Largest(keras.metrics.Metric):
    """What ranks cannot add up."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.most.assign(tf.maximum(self.most, tf.reduce_max(1 + tf.square(tf.cast(y_pred, tf.float32)))))

    def result(self) -> Any:
        return self.most.value


def model_of(metrics: list[Any]) -> keras.Model:
    keras.utils.set_random_seed(3)
    ids = keras.Input((2,), dtype="int64")
    output = keras.layers.Dense(1)(keras.layers.Flatten()(ShardedEmbedding(9, 4)(ids)))
    model = keras.Model(ids, output)
    model.compile("sgd", "mse", metrics=metrics)
    return model


def check(count: int, metrics: list[Any], eagerly: bool = False) -> None:
    """All rows count once, whoever has how many batches of them."""

    def batches(context: InputContext) -> tf.data.Dataset:
        part, parts = context.input_pipeline_id, context.num_input_pipelines
        own = [batch for number, batch in enumerate(BATCHES[:count]) if number % parts == part]
        spec = tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None, 1], tf.float32)
        return tf.data.Dataset.from_generator(lambda: iter(own), output_signature=spec)

    with placed(Mesh(world.size, 1, world.rank)):
        model = model_of([metric() for metric in metrics])
        model.run_eagerly = eagerly
        context = InputContext(world.rank, world.size, 0)
        evaluator = Evaluator(model, EvalSpec(batches), None, context, ReadResources(), refuse_name, world)
        evaluator.check()
    evaluator.agree()
    whole = model_of([metric() for metric in metrics])
    ids, targets = (np.concatenate(arrays) for arrays in zip(*BATCHES[:count], strict=True))
    expected = whole.evaluate(ids, targets, batch_size=len(ids), verbose=0, return_dict=True)
    for _ in range(2):
        seen: list[int] = []
        found = evaluator.evaluate(lambda: None, seen.append, groups=groups)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=f"{count} {name}")
        assert Largest in metrics or len(seen) == len(range(world.rank, count, world.size)), "hooks hear of own batches"


check(4, [keras.metrics.MeanAbsoluteError])
check(1, [keras.metrics.MeanAbsoluteError])
check(4, [Largest])
check(3, [], eagerly=True)
world.wait_asleep()
print(f"rank {world.rank} of {world.size} is fine")

"""Workers and parameter servers by TF_CONFIG, with hooks of its own."""

import json
import os

import tensorflow as tf
from absl import app, flags
from tensorflow.compat.v1.estimator import RunConfig as Config
from tensorflow.estimator import Estimator, EvalSpec, TrainSpec

flags.DEFINE_integer("save_checkpoints_steps", 250, "")
flags.DEFINE_integer("hidden", 16, "")
flags.DEFINE_list("worker_hosts", None, "")
flags.DEFINE_integer("task_index", 0, "")
FLAGS = flags.FLAGS
est = tf.estimator


class StopOnTarget(tf.compat.v1.train.SessionRunHook):
    """Ends training once the loss is small."""

    def begin(self):
        """Counts from 0."""
        self.count = 0

    def before_run(self, run_context):
        """Asks for the loss."""
        return tf.compat.v1.train.SessionRunArgs("loss:0")

    def after_run(self, run_context, run_values):
        """Looks at it."""
        if run_values.results < 0.01:
            run_context.request_stop()


class Copy(tf.estimator.CheckpointSaverListener):
    """Notes each checkpoint."""

    def after_save(self, session, global_step_value):
        """Prints it."""
        print(global_step_value)


def read(mode, params):
    """A dataset of this worker's part."""
    cluster = json.loads(os.environ["TF_CONFIG"])
    num_workers = len(cluster["cluster"]["worker"])
    worker_index = cluster["task"]["index"]
    dataset = tf.data.TFRecordDataset("rows.tfrecord").shard(num_workers, worker_index)
    return dataset.batch(params["batch"]).make_one_shot_iterator().get_next()


def train_input_fn(params):
    """For training."""
    return read(est.ModeKeys.TRAIN, params)


def model_fn(features, labels, mode, params, config):
    """A regression."""
    net = tf.compat.v1.feature_column.input_layer(features, [tf.feature_column.numeric_column("a", shape=(3,))])
    with tf.compat.v1.variable_scope("hidden"):
        net = tf.compat.v1.layers.dense(net, params["hidden"], tf.nn.relu, kernel_regularizer="l2")
    output = tf.compat.v1.layers.dense(net, 1)
    rate = tf.compat.v1.train.exponential_decay(params["rate"], tf.compat.v1.train.get_global_step(), 1000, 0.9)
    loss = tf.compat.v1.losses.mean_squared_error(labels, output)
    optimizer = tf.compat.v1.train.MomentumOptimizer(rate, 0.9)
    train_op = optimizer.minimize(loss)
    metrics = {"rmse": tf.compat.v1.metrics.root_mean_squared_error(labels, output)}
    return est.EstimatorSpec(mode, predictions=output, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def main(argv):
    """Starts this task."""
    task = {"cluster": {"worker": FLAGS.worker_hosts}, "task": {"index": FLAGS.task_index}}
    os.environ["TF_CONFIG"] = json.dumps(task)
    strategy = tf.distribute.experimental.ParameterServerStrategy()
    config = Config(
        "/tmp/models",
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        keep_checkpoint_max=0,
        train_distribute=strategy,
        log_step_count_steps=10,
    )
    estimator = Estimator(
        model_fn,
        config=config,
        params={"hidden": FLAGS.hidden, "rate": 0.05, "batch": 64},
        warm_start_from="/models/old",
    )
    train_spec = TrainSpec(train_input_fn, max_steps=1_000, hooks=[StopOnTarget()], saving_listeners=[Copy()])
    est.train_and_evaluate(estimator, train_spec, EvalSpec(train_input_fn, name="holdout"))


if __name__ == "__main__":
    app.run(main)

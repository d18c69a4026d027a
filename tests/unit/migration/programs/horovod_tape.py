"""Horovod by hand: a loop with a gradient tape."""

import argparse

import horovod.tensorflow as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--data-dir", default="/data")
args = parser.parse_args()


class Network(tf.keras.Model):
    """Two layers."""

    def __init__(self, hidden):
        super().__init__()
        self.first = tf.keras.layers.Dense(hidden, activation="relu")
        self.last = tf.keras.layers.Dense(10)

    def call(self, inputs):
        """Logits."""
        return self.last(self.first(inputs))


hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

dataset = tf.data.experimental.make_csv_dataset(args.data_dir, 64).shard(num_shards=hvd.size(), index=hvd.rank())
network = Network(args.hidden)
loss_object = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.optimizers.SGD(args.rate * hvd.size(), momentum=0.9)
checkpoint = tf.train.Checkpoint(model=network, optimizer=optimizer)


@tf.function
def training_step(images, labels, first_batch):
    """One step."""
    with tf.GradientTape() as tape:
        loss = loss_object(labels, network(images, training=True))
    tape = hvd.DistributedGradientTape(tape, device_dense="/gpu:0")
    gradients = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(network.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    return hvd.allreduce(loss)


state = hvd.elastic.TensorFlowKerasState(network, optimizer, batch=0)


@hvd.elastic.run
def train(state):
    """The loop."""
    for batch, (images, labels) in enumerate(dataset.take(10000 // hvd.size())):
        value = training_step(images, labels, batch == 0)
        if batch % 10 == 0 and hvd.local_rank() == 0:
            print(batch, value)
    state.commit()


train(state)
if hvd.rank() != 0:
    raise SystemExit
checkpoint.save("checkpoints/model")

"""Keras and Horovod: a small network on digits, with the callbacks that such programs have."""

import math

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow.keras import layers

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

BATCH = 32
EPOCHS = math.ceil(12.0 / hvd.size())
(x_train, y_train), _ = tf.keras.datasets.mnist.load_data(path=f"mnist-{hvd.rank()}.npz")
dataset = tf.data.Dataset.from_tensor_slices((x_train[..., None] / 255.0, y_train))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(10000).batch(BATCH)

units = 64
model = tf.keras.Sequential()
model.add(layers.Input((8,)))
model.add(layers.Dense(units, activation="relu"))
model.add(layers.Dropout(0.25))
model.add(layers.Dense(3))

scaled_rate = 0.001 * hvd.size()
opt = tf.keras.optimizers.Adam(lr=scaled_rate)
opt = hvd.DistributedOptimizer(
    opt, compression=hvd.Compression.fp16, backward_passes_per_step=2, average_aggregated_gradients=True
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(loss=loss, optimizer=opt, metrics=["accuracy"], experimental_run_tf_function=False)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_rate, warmup_epochs=3, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
model.fit(dataset, steps_per_epoch=500 // hvd.size(), callbacks=callbacks, epochs=8, verbose=hvd.rank() == 0)

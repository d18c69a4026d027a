"""Trains a small network by Keras `fit` on any number of ranks, in the manner of Horovod's examples.

    mpirun -np 2 python -m trainer.fit --job-dir DIR [--epochs 4]

After each epoch rank 0 writes DIR/models/epoch-<n>.keras; a job that is started again goes on from the newest, on
as many ranks or others.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import hpc_train.horovod.keras as hvd  # was: import horovod.keras as hvd

RATE = 0.05
"""For one rank; that of all together is as many times larger."""
BATCH = 25


def build_model() -> keras.Model:
    """Images float32 [B, 64] to logits [B, 10]."""
    model = keras.Sequential([keras.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE * hvd.size(), momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


class Saving(keras.callbacks.Callback):
    """Writes the model after each epoch, beside its place, and renames it: nobody ever sees half of it. On rank 0."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Called by Keras."""
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.folder / ".tmp-model.keras"
        self.model.save(beside)
        os.replace(beside, self.folder / f"epoch-{epoch + 1:04d}.keras")


def main() -> None:
    """Trains, or goes on."""
    parser = argparse.ArgumentParser(prog="trainer.fit", description=__doc__.splitlines()[0])
    parser.add_argument("--job-dir", type=Path, required=True, help="folder for all that the program writes")
    parser.add_argument("--epochs", type=int, default=4, help="over all runs [default: 4]")
    arguments = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target
    train, test = slice(hvd.rank(), 1500, hvd.size()), slice(1500, None)
    rows = 1500 // hvd.size() // BATCH * BATCH  # as many on all ranks

    models = arguments.job_dir / "models"
    newest = max(models.glob("epoch-*.keras"), default=None) if hvd.rank() == 0 else None
    newest = hvd.broadcast_object(newest)  # all ranks go on from the one that rank 0 sees
    model = hvd.load_model(newest) if newest else build_model()
    model.optimizer.learning_rate = RATE * hvd.size()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(RATE * hvd.size(), warmup_epochs=2),
    ]
    if hvd.rank() == 0:
        callbacks.append(Saving(models))
    model.fit(
        images[train][:rows],
        labels[train][:rows],
        batch_size=BATCH,
        epochs=arguments.epochs,
        initial_epoch=int(newest.stem.removeprefix("epoch-")) if newest else 0,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        loss, accuracy = model.evaluate(images[test], labels[test], verbose=0)
        print(f"loss {loss:.4f}, accuracy {accuracy:.4f} on 297 test images, ranks: {hvd.size()}; {models}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()

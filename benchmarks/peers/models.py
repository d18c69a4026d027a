"""The models that are trained, and rows that they can learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peers.settings import MOMENTUM

if TYPE_CHECKING:
    import keras

MLP, CNN, LARGE = "MLP 1.9 M", "CNN 0.7 M", "MLP 20 M"
MODELS: Mapping[str, str] = {"mlp": MLP, "cnn": CNN, "large": LARGE}
"""By their names on the command line: names with the number of parameters."""
PARAMETERS: Mapping[str, float] = {MLP: 1.9e6, CNN: 0.7e6, LARGE: 20e6}
LEARNING_RATES: Mapping[str, float] = {MLP: 2e-3, CNN: 1e-2, LARGE: 1e-3}
UNITS: Mapping[str, int] = {MLP: 1024, LARGE: 4096}
DESCRIPTIONS: Mapping[str, str] = {
    MLP: "784-1024-1024-10, 1.9 million parameters",
    CNN: "28 x 28 x 1, convolutions of 16 and 32 filters with max pooling, 448 and 10 units, 0.7 million parameters",
    LARGE: "784-4096-4096-10, 20 million parameters",
}
PROCESS_BYTES = 800 * 10**6
"""Of a rank with TensorFlow and the rows, without any parameters."""
COPIES = 12
"""Of the parameters: weights, momentum, gradients, averages and fusion buffer, of ours and a rival; a checkpoint."""
CLASSES, HIDDEN, NOISE = 10, 16, 0.1
FEATURES = 784
SHARDS, TEST_ROWS = 4, 256


def row_shape(model: str) -> tuple[int, ...]:
    """The shape of a row of float32 that `model` takes."""
    return (28, 28, 1) if model == CNN else (FEATURES,)


def data_folder(model: str) -> str:
    """Name of the folder with rows of that shape."""
    return "images" if model == CNN else "rows"


def build_model(params: Mapping[str, Any]) -> keras.Model:
    """The model called `params["model"]`, with its optimizer; as a job file names it."""
    import keras

    name = str(params["model"])
    layers: list[Any]
    if name == CNN:
        layers = []
        for filters in (16, 32):
            layers.append(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
            layers.append(keras.layers.MaxPooling2D())
        layers += [keras.layers.Flatten(), keras.layers.Dense(448, activation="relu")]
    else:
        layers = [keras.layers.Dense(UNITS[name], activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input(row_shape(name)), *layers, keras.layers.Dense(CLASSES)])
    rate = params.get("learning_rate", LEARNING_RATES[name])
    optimizer = keras.optimizers.SGD(rate, momentum=MOMENTUM)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def make_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows `x` float32 [count, 784] that a few hidden numbers decide on, as does a random network on the class `y`."""
    fixed, random = np.random.default_rng(1), np.random.default_rng(seed)
    shown = fixed.normal(size=(HIDDEN, FEATURES)).astype(np.float32) / HIDDEN**0.5
    into, out = fixed.normal(size=(HIDDEN, 64)) / 2, fixed.normal(size=(64, CLASSES))
    hidden = random.normal(size=(count, HIDDEN)).astype(np.float32)
    x = hidden @ shown + NOISE * random.standard_normal((count, FEATURES), np.float32)
    return x.astype(np.float32), (np.tanh(hidden @ into) @ out).argmax(axis=1).astype(np.int64)


def write_data(folder: Path, models: Sequence[str], rows: int) -> None:
    """Writes HDF5 shards that `models` need: contiguous float32 rows, `train-*.h5` and `test-*.h5`."""
    from hpc_train.data.writing.writer import write_shards

    for model in {data_folder(model): model for model in models}.values():
        for name, count, seed in (("train", rows, 2), ("test", TEST_ROWS, 3)):
            x, y = make_rows(count, seed)
            path = folder / data_folder(model) / name
            write_shards(path, {"x": x.reshape(-1, *row_shape(model)), "y": y}, shards=SHARDS)


def load_batches(folder: Path, model: str, rank: int, size: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """One rank's share of the training rows as whole batches, `[N, B, ...]` and `[N, B]`, in memory.

    Needs h5py alone: a peer that has an environment of its own reads them, too.
    """
    import h5py

    parts = []
    for path in sorted((folder / data_folder(model)).glob("train-*.h5")):
        with h5py.File(path) as file:
            parts.append((file["x"][()], file["y"][()]))
    x, y = (np.concatenate(columns)[rank::size] for columns in zip(*parts, strict=True))
    count = len(x) // batch
    if count == 0:
        raise ValueError(f"{folder}: {len(x)} rows for rank {rank} of {size}; a batch needs {batch}")
    return tuple(rows[: count * batch].reshape(count, batch, *rows.shape[1:]) for rows in (x, y))  # type: ignore[return-value]


def check_memory(models: Sequence[str], ranks: int) -> None:
    """Sees that so many ranks can train each model and a rival's in the memory that is left on this node.

    Raises:
        UsageError: They cannot.
    """
    from support.usage import UsageError

    from hpc_train.data.memory import available_bytes

    available = available_bytes()
    for model in models:
        needed = ranks * (PROCESS_BYTES + COPIES * 4 * PARAMETERS[model])
        if needed > available:
            raise UsageError(
                f"--models: {model} on {ranks} ranks needs about {needed / 1e9:.1f} GB of memory, and "
                f"{available / 1e9:.1f} GB are free; give fewer --ranks, or smaller --models"
            )

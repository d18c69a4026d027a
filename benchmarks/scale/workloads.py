"""What is trained: models by name, what they need, and rows for them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import models
from peers.models import MODELS
from peers.settings import MOMENTUM

from scale.jobs import SHARD_BYTES, SHARD_ROWS, SHARDS

if TYPE_CHECKING:
    import keras

LEARNING_RATE = 1e-3
BYTES_A_NUMBER = 4
COPIES = 7
"""Of the parameters, on each rank: weights, momentum, gradients, averages, Horovod's fusion buffer, the snapshot of a
checkpoint, and what an operation holds while it runs."""
PROCESS_BYTES = 700 * 10**6
"""A rank before it has a model: Python, TensorFlow, Horovod."""


@dataclass(frozen=True)
class Workload:
    """A model to be trained.

    Attributes:
        parameters: About so many. shape: of a row, without the batch. tokens: Of a row of integers; 0: it is float32.
        batch, gpu_batch: Rows a rank and step, on cores and on a GPU.
        activation_bytes: Of one row, kept for the backward pass.
    """

    name: str
    title: str
    parameters: float
    shape: tuple[int, ...]
    classes: int
    batch: int
    gpu_batch: int
    activation_bytes: float
    tokens: int = 0

    def rank_bytes(self, batch: int) -> float:
        """What a rank needs, roughly."""
        return PROCESS_BYTES + COPIES * BYTES_A_NUMBER * self.parameters + batch * self.activation_bytes


def emulated_bytes(gradient_bytes: int) -> float:
    """What a rank needs whose model only waits, roughly."""
    return PROCESS_BYTES + COPIES * float(gradient_bytes)


MLP = Workload("mlp", "MLP 784-1024-1024-10", 1.9e6, (784,), 10, 64, 1024, 3e4)
CNN = Workload("cnn", "CNN of 2 convolutions", 0.7e6, (28, 28, 1), 10, 64, 1024, 3e5)
TRANSFORMER = Workload("transformer", "Transformer encoder, 6 layers of 512", 23e6, (128,), 10, 4, 64, 4e7, tokens=8000)
RESNET = Workload("resnet50", "ResNet-50", 25.6e6, (224, 224, 3), 1000, 4, 64, 2.5e8)
VGG = Workload("vgg16", "VGG-16", 138.4e6, (224, 224, 3), 1000, 4, 64, 2.5e8)
WORKLOADS: Mapping[str, Workload] = {w.name: w for w in (MLP, CNN, TRANSFORMER, RESNET, VGG)}


def build_model(params: Mapping[str, Any]) -> keras.Model:
    """The model of the workload `params["workload"]`, compiled."""
    import keras

    workload = WORKLOADS[params["workload"]]
    if workload.name in MODELS:
        return models.build_model({"model": MODELS[workload.name]})
    if workload is TRANSFORMER:
        model = _transformer(workload)
    else:
        make = keras.applications.ResNet50 if workload is RESNET else keras.applications.VGG16
        model = make(weights=None, classifier_activation=None)
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _transformer(workload: Workload, depth: int = 6, width: int = 512, heads: int = 8) -> keras.Model:
    """An encoder with normalisation before each part (Xiong et al., "On Layer Normalization", arXiv:2002.04745)."""
    import keras
    from keras import layers

    tokens = keras.Input(workload.shape, dtype="int32")
    x = layers.Embedding(workload.tokens, width)(tokens)
    for _ in range(depth):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal)
        inner = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(inner)
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(tokens, layers.Dense(workload.classes)(pooled))


def make_rows(workload: Workload, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows `x` [count, …] and classes `y` [count]; they cost as much as real ones, and teach nothing."""
    random = np.random.default_rng(seed)
    if workload.tokens:
        x: np.ndarray = random.integers(0, workload.tokens, (count, *workload.shape), np.int32)
    else:
        x = random.standard_normal((count, *workload.shape), np.float32)
    return x, random.integers(0, workload.classes, count, np.int64)


def write_data(folder: Path, workload: Workload, least_rows: int) -> None:
    """Writes HDF5 shards of random rows, `folder/<name>/train-*.h5`: `least_rows`, or more up to SHARD_BYTES."""
    from hpc_train.data.writing.writer import write_shards

    row_bytes = BYTES_A_NUMBER * int(np.prod(workload.shape))
    x, y = make_rows(workload, max(least_rows, min(SHARD_ROWS, SHARD_BYTES // row_bytes)), seed=2)
    shutil.rmtree(folder / workload.name, ignore_errors=True)
    write_shards(folder / workload.name / "train", {"x": x, "y": y}, shards=SHARDS)

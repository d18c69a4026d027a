"""A small language model: a decoder that reads characters, whose layers a job with run.mesh divides among its ranks."""

import keras
import numpy as np
from keras import layers

from hpc_train import parallel


def positions(length, width):
    """Sines and cosines of many wavelengths, one row for each place (arXiv:1706.03762, section 3.5)."""
    angles = np.arange(length)[:, np.newaxis] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def block(x, width, heads, dropout):
    """Attention to what came before, then two dense layers, each added to what went in (pre-norm)."""
    normed = layers.LayerNormalization()(x)
    attention = parallel.MultiHeadAttention(heads, width // heads)(normed, normed, use_causal_mask=True)
    x = x + layers.Dropout(dropout)(attention)
    hidden = parallel.ColumnDense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dropout(dropout)(parallel.RowDense(width)(hidden))


def build_model(params):
    """Characters uint8 [B, length] to logits [B, length, 128] of the character behind each."""
    length, width = params["length"], params["width"]
    tokens = keras.Input((length,), dtype="uint8", name="tokens")
    x = parallel.Embedding(128, width)(tokens) + positions(length, width)
    for _ in range(params["blocks"]):
        x = block(x, width, params["heads"], params["dropout"])
    logits = layers.Dense(128, name="logits")(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, params["steps"], warmup_target=params["learning_rate"], warmup_steps=40
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model

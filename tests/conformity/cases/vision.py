"""Models of images."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case


def cnn(params):
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def separable_cnn(params):
    inputs = keras.Input((12, 12, 3))
    x = layers.SeparableConv2D(6, 3, padding="same", activation="relu")(inputs)
    x = layers.AveragePooling2D(2)(x)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)(x)
    x = layers.ReLU()(x)
    x = layers.GlobalMaxPooling2D()(x)
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def residual_cnn(params):
    inputs = keras.Input((12, 12, 1))
    x = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    for _ in range(2):
        residual = x
        x = layers.Conv2D(6, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(6, 3, padding="same")(x)
        x = layers.ReLU()(layers.Add()([x, residual]))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


UNLABELLED = 255


def u_net(params):
    inputs = keras.Input((16, 16, 1))
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    second = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(first)
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(second)
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Concatenate()([x, second])
    x = layers.UpSampling2D()(x)
    x = layers.Concatenate()([x, first])
    model = keras.Model(inputs, layers.Conv2D(3, 1)(x))
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=UNLABELLED),
        metrics=[keras.metrics.MeanIoU(3, ignore_class=UNLABELLED, sparse_y_pred=False, name="iou")],
    )
    return model


def masks(rng, count):
    x = rows.shares(rng, count, 16, 16, 1)
    y = (x[..., 0] * 3).astype("uint8")
    unlabelled = rng.uniform(size=y.shape) < rng.uniform(0, 0.9, (count, 1, 1))  # a different share in each image
    y[unlabelled] = UNLABELLED
    return x, y


class Positions(layers.Layer):
    """Adds a learned vector to each patch."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=shape[1:], initializer="uniform", name="vectors")

    def call(self, x):
        return x + self.vectors


def vision_transformer(params):
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(8, 4, strides=4)(inputs)
    x = Positions()(layers.Reshape((9, 8))(x))
    for _ in range(2):
        normalized = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(normalized, normalized)])
        hidden = layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(8)(hidden)])
    x = layers.Flatten()(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(3)(x))
    metrics = ["accuracy"]
    if keras.config.floatx() == "float32":  # its operation has no other
        metrics.append(keras.metrics.SparseTopKCategoricalAccuracy(2, name="top_2"))
    model.compile(
        keras.optimizers.AdamW(1e-2, weight_decay=1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=metrics,
    )
    return model


def byte_images(params):
    inputs = keras.Input((12, 12, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = layers.Conv2D(6, 3, strides=2, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def bytes_of_images(rng, count):
    x = rng.integers(0, 256, (count, 12, 12, 3)).astype("uint8")
    return x, rows.classes(x, 3).astype("uint8")


def mixer(params):
    inputs = keras.Input((12, 12, 1))
    x = layers.Reshape((9, 8))(layers.Conv2D(8, 4, strides=4)(inputs))
    tokens = layers.Permute((2, 1))(layers.LayerNormalization()(x))
    tokens = layers.Dense(9)(layers.Dense(12, activation="gelu")(tokens))
    x = layers.Add()([x, layers.Permute((2, 1))(tokens)])
    channels = layers.Dense(12, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(8)(channels)])
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def point_net(params):
    inputs = keras.Input((16, 3))
    x = layers.Conv1D(8, 1, activation="relu")(inputs)
    turn = layers.Reshape((8, 8))(layers.Dense(64)(layers.GlobalMaxPooling1D()(x)))
    x = layers.Dot((2, 1))([x, turn])
    x = layers.GlobalMaxPooling1D()(layers.Conv1D(12, 1, activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def clouds(rng, count):
    x = rows.numbers(rng, count, 16, 3)
    return x, rows.classes(x, 3)


def localizer(params):
    inputs = keras.Input((12, 12, 1), name="image")
    x = layers.Conv2D(6, 3, strides=2, activation="relu")(inputs)
    x = layers.Flatten()(x)
    outputs = {
        "kind": layers.Dense(3, activation="softmax", name="kind")(x),
        "box": layers.Dense(4, activation="sigmoid", name="box")(x),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(1e-2),
        loss={"kind": "sparse_categorical_crossentropy", "box": keras.losses.Huber()},
        loss_weights={"kind": 1.0, "box": 5.0},
        metrics={"kind": ["accuracy"]},
        weighted_metrics={"box": ["mae"]},
    )
    return model


def boxes(rng, count):
    x = rows.shares(rng, count, 12, 12, 1)
    kind = rows.classes(x, 3)
    weights = {"kind": np.ones(count, "float32"), "box": (kind > 0).astype("float32")}
    return x, {"kind": kind, "box": rows.shares(rng, count, 4)}, weights


def super_resolution(params):
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(4, 3, padding="same")(x)
    x = layers.Reshape((8, 8, 2, 2))(x)
    x = layers.Reshape((16, 16, 1))(layers.Permute((1, 3, 2, 4))(x))
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


def pairs_of_sizes(rng, count):
    y = rows.shares(rng, count, 16, 16, 1)
    return y.reshape(count, 8, 2, 8, 2, 1).mean((2, 4)).astype("float32"), y


def video_cnn(params):
    inputs = keras.Input((4, 8, 8, 1))
    x = layers.Conv3D(4, (2, 3, 3), activation="relu")(inputs)
    x = layers.MaxPooling3D((1, 2, 2))(x)
    x = layers.GlobalAveragePooling3D()(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return model


def videos(rng, count):
    x = rows.shares(rng, count, 4, 8, 8, 1)
    return x, (x[:, 0].mean((1, 2, 3)) > 0.5).astype("float32")[:, None]


def augmented_cnn(params):
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.RandomFlip("horizontal", seed=1),
            layers.RandomTranslation(0.1, 0.1, seed=2),
            layers.Conv2D(6, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def channel_attention(params):
    """Squeeze and excitation: channels weighed by what the whole image shows."""
    inputs = keras.Input((12, 12, 1))
    x = layers.Conv2D(8, 3, activation="relu")(inputs)
    excitation = layers.GlobalAveragePooling2D(keepdims=True)(x)
    excitation = layers.Conv2D(2, 1, activation="relu")(excitation)
    excitation = layers.Conv2D(8, 1, activation="sigmoid")(excitation)
    x = layers.Multiply()([x, excitation])
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    model.compile(keras.optimizers.RMSprop(1e-2), "categorical_crossentropy", metrics=["accuracy"])
    return model


def hot_images(rng, count):
    x, y = rows.images()(rng, count)
    return x, rows.one_hot(y, 3)


def keypoints(params):
    """A softmax over places, and the mean place by it."""
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(2, 3, padding="same")(x)
    heat = layers.Softmax(axis=1)(layers.Reshape((64, 2))(x))
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), -1).reshape(64, 2).astype("float32") / 8
    places = ops.einsum("bpk,pc->bkc", heat, grid)
    model = keras.Model(inputs, places)
    model.compile(keras.optimizers.Adam(1e-2), "mae", metrics=["mse"])
    return model


def places_in_images(rng, count):
    return rows.shares(rng, count, 8, 8, 1), rows.shares(rng, count, 2, 2)


CASES = (
    Case("cnn", cnn, rows.images(), note="Sequential, convolution and pooling"),
    Case("separable_cnn", separable_cnn, rows.images(channels=3), note="separable and depthwise convolution"),
    Case("residual_cnn", residual_cnn, rows.images(), note="residual blocks"),
    Case("u_net", u_net, masks, note="segmentation; ignore_class, a different share of pixels in each image"),
    Case("vision_transformer", vision_transformer, rows.images(channels=3), note="patches, own layer of positions"),
    Case("byte_images", byte_images, bytes_of_images, note="uint8 images and labels, Rescaling"),
    Case("mixer", mixer, rows.images(), note="MLP over patches and over channels"),
    Case("point_net", point_net, clouds, note="points without an order, a learned transform"),
    Case("localizer", localizer, boxes, note="class and box; rows without an object have no weight for the box"),
    Case("super_resolution", super_resolution, pairs_of_sizes, note="pixels from channels"),
    Case("video_cnn", video_cnn, videos, note="3D convolution"),
    Case("augmented_cnn", augmented_cnn, rows.images(), random=True, note="random flips and shifts"),
    Case("channel_attention", channel_attention, hot_images, note="squeeze and excitation; one-hot labels"),
    Case("keypoints", keypoints, places_in_images, note="operations of keras.ops between layers"),
)

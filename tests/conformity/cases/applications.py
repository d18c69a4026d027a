"""Models of keras.applications, without their weights."""

from __future__ import annotations

import keras
from keras import layers

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case

SHAPE = (32, 32, 3)


def classifier(application, optimizer="adam"):
    """Of a function that makes the network."""

    def build(params):
        model = application()
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


def mobile_net():
    return keras.applications.MobileNet(SHAPE, alpha=0.25, weights=None, classes=5, dropout=0)


def mobile_net_v3():
    whole = keras.applications.MobileNetV3Small(SHAPE, alpha=0.35, minimalistic=True, weights=None, include_top=False)
    x = layers.Flatten()(whole.get_layer("expanded_conv_2_add").output)
    return keras.Model(whole.input, layers.Dense(5, activation="softmax")(x))


def first_blocks():
    """MobileNetV2 up to its third block."""
    whole = keras.applications.MobileNetV2(SHAPE, alpha=0.35, weights=None, include_top=False)
    return keras.Model(whole.input, whole.get_layer("block_2_add").output, name="first_blocks")


def mobile_net_v2():
    base = first_blocks()
    return keras.Model(base.input, layers.Dense(5, activation="softmax")(layers.Flatten()(base.output)))


def transfer(params):
    base = first_blocks()
    base.trainable = False
    inputs = keras.Input(SHAPE)
    x = layers.GlobalAveragePooling2D()(base(inputs, training=False))
    model = keras.Model(inputs, layers.Dense(5)(x))
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def fine_tuning(params):
    base = first_blocks()
    for layer in base.layers:
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    inputs = keras.Input(SHAPE)
    x = layers.GlobalAveragePooling2D()(base(inputs, training=False))
    model = keras.Model(inputs, layers.Dense(5)(x))
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def synchronized(layer):
    """The same layer; BatchNormalization with the mean and variance of the whole batch."""
    config = layer.get_config()
    if isinstance(layer, layers.BatchNormalization):
        config["synchronized"] = True
    return type(layer).from_config(config)


def synchronized_blocks(params):
    base = keras.models.clone_model(first_blocks(), clone_function=synchronized)
    model = keras.Sequential([base, layers.GlobalMaxPooling2D(), layers.Dense(5, activation="softmax")])
    model.build((None, *SHAPE))
    model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy")
    return model


photos = rows.images(32, 3, 5)

CASES = (
    Case(
        "mobile_net", classifier(mobile_net), photos, rows_coupled=True, note="MobileNet, all of it; BatchNormalization"
    ),
    Case(
        "mobile_net_v2",
        classifier(mobile_net_v2),
        photos,
        rows_coupled=True,
        note="the first blocks of MobileNetV2; BatchNormalization",
    ),
    Case(
        "mobile_net_v3",
        classifier(mobile_net_v3, "rmsprop"),
        photos,
        rows_coupled=True,
        note="the first blocks of MobileNetV3Small, with its Rescaling; BatchNormalization",
    ),
    Case("transfer", transfer, photos, note="frozen blocks of MobileNetV2, a head that is trained"),
    Case("fine_tuning", fine_tuning, photos, note="MobileNetV2 trained but for its BatchNormalization"),
    Case(
        "synchronized_blocks",
        synchronized_blocks,
        photos,
        asynchronous=False,
        note="a clone of MobileNetV2's blocks with synchronized BatchNormalization",
    ),
)

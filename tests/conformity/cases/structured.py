"""Models of tables: numbers, categories, graphs; several inputs and outputs."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case


def mlp(params):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(3)])
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def wide_and_deep(params):
    categories = keras.Input((3,), dtype="int32", name="categories")
    numbers = keras.Input((6,), name="numbers")
    wide = layers.Flatten()(layers.CategoryEncoding(10, output_mode="multi_hot")(categories))
    deep = layers.Concatenate()([layers.Flatten()(layers.Embedding(10, 4)(categories)), numbers])
    deep = layers.Dense(8, activation="relu")(layers.Dense(12, activation="relu")(deep))
    x = layers.Concatenate()([wide, deep])
    model = keras.Model({"categories": categories, "numbers": numbers}, layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Ftrl(0.05), "binary_crossentropy", metrics=["accuracy", "auc"])
    return model


def table(rng, count):
    x = {"categories": rng.integers(0, 10, (count, 3)).astype("int32"), "numbers": rows.numbers(rng, count, 6)}
    return x, (x["numbers"][:, :1] + x["categories"][:, :1] > 4).astype("float32")


def deep_and_cross(params):
    categories = keras.Input((3,), dtype="int32", name="categories")
    numbers = keras.Input((6,), name="numbers")
    start = layers.Concatenate()([layers.Flatten()(layers.Embedding(10, 4)(categories)), numbers])
    x = start
    for _ in range(2):
        x = layers.Add()([x, layers.Multiply()([start, layers.Dense(18)(x)])])
    x = layers.Concatenate()([x, layers.Dense(12, activation="relu")(start)])
    model = keras.Model([categories, numbers], layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return model


def two_tower(params):
    user = keras.Input((1,), dtype="int32", name="user")
    film = keras.Input((1,), dtype="int32", name="film")
    users = layers.Flatten()(layers.Embedding(12, 6, embeddings_regularizer=keras.regularizers.L2(1e-3))(user))
    films = layers.Flatten()(layers.Embedding(9, 6, embeddings_regularizer=keras.regularizers.L2(1e-3))(film))
    score = layers.Dot(1)([layers.Dense(6)(users), layers.Dense(6)(films)])
    bias = layers.Flatten()(layers.Embedding(9, 1)(film))
    rating = layers.Activation("sigmoid")(layers.Add()([score, bias]))
    model = keras.Model({"user": user, "film": film}, rating)
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy")
    return model


def ratings(rng, count):
    x = {
        "user": rng.integers(0, 12, (count, 1)).astype("int64"),
        "film": rng.integers(0, 9, (count, 1)).astype("int64"),
    }
    return x, ((x["user"] * x["film"]) % 5 / 4).astype("float32")


def several_inputs(params):
    inputs = {
        "age": keras.Input((1,), name="age"),
        "member": keras.Input((1,), dtype="bool", name="member"),
        "visits": keras.Input((4,), dtype="uint8", name="visits"),
        "map": keras.Input((6, 6, 1), name="map"),
    }
    visits = ops.cast(inputs["visits"], "float32") / 255
    image = layers.Flatten()(layers.Conv2D(2, 3, activation="relu")(inputs["map"]))
    x = layers.Concatenate()([inputs["age"], ops.cast(inputs["member"], "float32"), visits, image])
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.Dense(12, activation="tanh")(x)))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def persons(rng, count):
    x = {
        "age": rows.numbers(rng, count, 1),
        "member": rng.integers(0, 2, (count, 1)).astype(bool),
        "visits": rng.integers(0, 256, (count, 4)).astype("uint8"),
        "map": rows.shares(rng, count, 6, 6, 1),
    }
    return x, rows.classes(x["map"], 3)


def several_outputs(params):
    """Three outputs: a mask of the input's, ignored classes, and weights of rows divide each loss differently."""
    inputs = keras.Input((6,), dtype="int32", name="tokens")
    x = layers.LSTM(8, return_sequences=True)(layers.Embedding(12, 8, mask_zero=True)(inputs))
    pooled = layers.GlobalAveragePooling1D()(x)
    outputs = {
        "next": layers.Dense(12, name="next")(x),
        "topic": layers.Dense(4, activation="softmax", name="topic")(pooled),
        "score": layers.Dense(1, name="score")(pooled),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(1e-2),
        loss={
            "next": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "topic": keras.losses.SparseCategoricalCrossentropy(ignore_class=3),
            "score": keras.losses.MeanAbsoluteError(reduction="mean_with_sample_weight"),
        },
        loss_weights={"next": 1.0, "topic": 0.5, "score": 2.0},
        metrics={"topic": ["accuracy"], "score": ["mse"]},
    )
    return model


def read_and_scored(rng, count):
    x = rows.padded(rng, count, 6, 12)
    y = {
        "next": rows.shifted(x),
        "topic": rng.integers(0, 4, count).astype("int32"),
        "score": rows.numbers(rng, count, 1),
    }
    ones = np.ones(count, "float32")
    return x, y, {"next": np.ones((count, 6), "float32"), "topic": ones, "score": rows.shares(rng, count)}


def quantiles(params):
    inputs = keras.Input((8,))
    x = layers.Dense(12, activation="relu")(inputs)
    low, high = layers.Dense(1, name="low")(x), layers.Dense(1, name="high")(x)
    model = keras.Model(inputs, {"low": low, "high": high, "hidden": x})
    model.compile(
        keras.optimizers.Adam(1e-2),
        {"low": quantile_loss(0.1), "high": quantile_loss(0.9)},
    )
    return model


def quantile_loss(share: float):
    def loss(y_true, y_pred):
        error = y_true - y_pred
        return ops.mean(ops.maximum(share * error, (share - 1) * error), -1)

    return loss


def both_ends(rng, count):
    x, y = rows.regression()(rng, count)
    return x, {"low": y, "high": y}


def class_weights(params):
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(layers.Dense(8, activation="relu")(inputs)))
    model.compile(
        keras.optimizers.Adam(1e-2),
        "binary_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall")],
    )
    return model


def imbalanced(rng, count):
    """One row in five is of the rarer class, and weighs as much as the others together."""
    x = rows.numbers(rng, count, 8)
    y = (x[:, 0] > 0.85).astype("int32")
    return x, y, np.where(y == 1, 4.0, 1.0).astype("float32")


def categories(params):
    """Numbers to bins, ids to indices and to hashes, and a crossing of two."""
    age = keras.Input((1,), name="age")
    place = keras.Input((1,), dtype="int64", name="place")
    shop = keras.Input((1,), dtype="int64", name="shop")
    bins = layers.Discretization([-1.0, 0.0, 1.0])(age)
    index = layers.IntegerLookup(vocabulary=[100, 200, 300, 400])(place)
    hashed = layers.Hashing(6)(shop)
    crossed = layers.HashedCrossing(8)((place, shop))
    embedded = [layers.Embedding(size, 3)(ids) for size, ids in ((4, bins), (5, index), (6, hashed), (8, crossed))]
    x = layers.Flatten()(layers.Concatenate()(embedded))
    model = keras.Model({"age": age, "place": place, "shop": shop}, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def purchases(rng, count):
    x = {
        "age": rows.numbers(rng, count, 1),
        "place": rng.integers(1, 6, (count, 1)) * 100,
        "shop": rng.integers(0, 50, (count, 1)),
    }
    return x, (x["age"] + x["place"] / 300).astype("float32")


def normalized(params):
    """Normalization adapted to rows of the same kind."""
    normalization = layers.Normalization()
    normalization.adapt(heights(np.random.default_rng(2), 64)[0])
    model = keras.Sequential([keras.Input((5,)), normalization, layers.Dense(8, activation="relu"), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mape"])
    return model


def heights(rng, count):
    x = rows.numbers(rng, count, 5) * 30 + 170
    return x, (x.mean(1, keepdims=True) / 170).astype("float32")


class Experts(layers.Layer):
    """Two layers for each row to choose from; the loss wants all to be chosen alike."""

    def __init__(self, count: int, units: int, **options):
        super().__init__(**options)
        self.count, self.units = count, units
        self.gate = layers.Dense(count, activation="softmax")

    def build(self, shape):
        self.gate.build(shape)
        self.kernels = self.add_weight(
            shape=(self.count, shape[-1], self.units), initializer="glorot_uniform", name="kernels"
        )

    def call(self, x):
        gates = self.gate(x)
        chosen = ops.one_hot(ops.argmax(gates, -1), self.count)
        self.add_loss(0.1 * self.count * ops.sum(ops.mean(gates, 0) * ops.mean(chosen, 0)))
        weights = chosen * gates
        return ops.relu(ops.einsum("be,bi,eio->bo", weights, x, self.kernels))


def mixture_of_experts(params):
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(Experts(3, 8)(inputs)))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def hyper_network(params):
    """Weights of a layer that another network makes of each row."""
    task, x = keras.Input((3,), name="task"), keras.Input((4,), name="x")
    hidden = layers.Dense(8, activation="tanh")(task)
    kernel = layers.Reshape((4, 5))(layers.Dense(20)(hidden))
    main = layers.Dot((1, 1))([x, kernel])
    model = keras.Model({"task": task, "x": x}, layers.Dense(1)(layers.ReLU()(main)))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def tasks(rng, count):
    x = {"task": rows.numbers(rng, count, 3), "x": rows.numbers(rng, count, 4)}
    return x, (x["task"][:, :1] * x["x"][:, :1]).astype("float32")


class GraphConvolution(layers.Layer):
    """What neighbours say, of each node of each graph."""

    def __init__(self, units: int, **options):
        super().__init__(**options)
        self.message, self.update = layers.Dense(units, use_bias=False), layers.Dense(units, activation="relu")

    def build(self, shape):
        nodes, _ = shape
        self.message.build(nodes)
        self.update.build((*nodes[:-1], nodes[-1] + self.message.units))

    def call(self, inputs):
        nodes, edges = inputs
        messages = ops.matmul(ops.cast(edges, nodes.dtype), self.message(nodes))
        return self.update(ops.concatenate([nodes, messages], -1))

    def compute_output_shape(self, shape):
        return (*shape[0][:-1], self.update.units)


def graph_network(params):
    nodes, edges = keras.Input((5, 3), name="nodes"), keras.Input((5, 5), dtype="bool", name="edges")
    x = GraphConvolution(6)([GraphConvolution(6)([nodes, edges]), edges])
    model = keras.Model({"nodes": nodes, "edges": edges}, layers.Dense(2)(x))
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
    )
    return model


def graphs(rng, count):
    """Graphs of five nodes, of which a few have a label."""
    edges = rng.uniform(size=(count, 5, 5)) < 0.4
    y = rng.integers(0, 2, (count, 5)).astype("int32")
    y[rng.uniform(size=y.shape) < 0.5] = -1
    return {"nodes": rows.numbers(rng, count, 5, 3), "edges": edges | edges.transpose(0, 2, 1)}, y


def table_transformer(params):
    categories = keras.Input((3,), dtype="int32", name="categories")
    numbers = keras.Input((6,), name="numbers")
    x = layers.Embedding(10, 8)(categories)
    x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
    x = layers.Concatenate()([layers.Flatten()(x), layers.LayerNormalization()(numbers)])
    model = keras.Model([categories, numbers], layers.Dense(1)(layers.Dense(8, activation="gelu")(x)))
    model.compile(
        keras.optimizers.AdamW(1e-2),
        keras.losses.BinaryFocalCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    return model


def residual_gates(params):
    """Gated residual networks, and a softmax that selects variables."""
    inputs = keras.Input((6,))
    features = [layers.Dense(4)(inputs[:, place : place + 1]) for place in range(3)]
    selection = layers.Softmax()(layers.Dense(3)(inputs))
    gated = []
    for feature in features:
        hidden = layers.Dense(4)(layers.Dense(4, activation="elu")(feature))
        gate = layers.Dense(4, activation="sigmoid")(hidden)
        gated.append(layers.LayerNormalization()(layers.Add()([feature, layers.Multiply()([gate, hidden])])))
    x = layers.Dot((1, 1))([selection, ops.stack(gated, 1)])
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def decision_forest(params):
    """A soft tree: each leaf weighs as likely as the way to it."""
    inputs = keras.Input((6,))
    turns = layers.Dense(3, activation="sigmoid")(inputs)
    first, left, right = turns[:, :1], turns[:, 1:2], turns[:, 2:]
    ways = layers.Concatenate()([first * left, first * (1 - left), (1 - first) * right, (1 - first) * (1 - right)])
    model = keras.Model(inputs, layers.Dense(2, use_bias=False)(ways))
    model.compile(keras.optimizers.Adam(5e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def counts(params):
    inputs = keras.Input((4,), dtype="int32")
    x = layers.Dense(6, activation="softplus")(inputs)
    model = keras.Model(inputs, layers.Dense(1, activation="exponential", use_bias=False)(x))
    model.compile(keras.optimizers.SGD(1e-2), "poisson")
    return model


def counted(rng, count):
    x = rng.integers(0, 3, (count, 4)).astype("int32")
    return x, rng.poisson(x.sum(1, keepdims=True)).astype("int64")


CASES = (
    Case("mlp", mlp, rows.vectors(), note="two Dense layers"),
    Case("wide_and_deep", wide_and_deep, table, note="multi-hot and embedded categories"),
    Case("deep_and_cross", deep_and_cross, table, note="features multiplied"),
    Case("two_tower", two_tower, ratings, note="embeddings of users and of films, with regularizers"),
    Case("several_inputs", several_inputs, persons, note="dict of inputs: float32, bool, uint8, images"),
    Case(
        "several_outputs",
        several_outputs,
        read_and_scored,
        note="three losses, each divided by something else: mask, ignore_class, weights",
    ),
    Case("quantiles", quantiles, both_ends, note="two losses; a third output has none"),
    Case("class_weights", class_weights, imbalanced, note="weights of classes as weights of rows"),
    Case("categories", categories, purchases, note="Discretization, IntegerLookup, Hashing, HashedCrossing"),
    Case("normalized", normalized, heights, note="Normalization that was adapted"),
    Case(
        "mixture_of_experts",
        mixture_of_experts,
        rows.vectors(),
        rows_coupled=True,
        note="add_loss of a product of two means over the batch",
    ),
    Case("hyper_network", hyper_network, tasks, note="weights made by another network"),
    Case("graph_network", graph_network, graphs, note="message passing, bool edges; few nodes have a label"),
    Case("table_transformer", table_transformer, table, note="attention between categories; focal loss"),
    Case("residual_gates", residual_gates, rows.regression(6), note="selection of variables"),
    Case("decision_forest", decision_forest, rows.vectors(6, 2), note="a soft tree"),
    Case("counts", counts, counted, note="int32 features, int64 labels, no bias in the last layer"),
)

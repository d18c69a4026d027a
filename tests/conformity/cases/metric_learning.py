"""Models that learn what is alike."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case

SIZE = 8


def encoder(name: str = "encoder", outputs: int = 6):
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(4, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(outputs),
        ],
        name=name,
    )


def pictures(rng, count):
    return rows.shares(rng, count, SIZE, SIZE, 1)


def blurred(rng, x):
    """Something like x."""
    return (0.8 * x + 0.2 * rows.shares(rng, *x.shape)).astype("float32")


class Triplets(keras.Model):
    """Which of two is more like an anchor; each row brings its own three."""

    def __init__(self, margin: float = 0.5):
        super().__init__()
        self.encoder, self.margin = encoder(), margin
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        anchor = self.encoder(x["anchor"])
        return [ops.sum(ops.square(anchor - self.encoder(x[name])), -1) for name in ("positive", "negative")]

    def triplet_loss(self, x):
        near, far = self(x)
        return ops.mean(ops.maximum(near - far + self.margin, 0.0))

    def train_step(self, data):
        x, *_ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.triplet_loss(x)
        gradients = tape.gradient(loss, self.encoder.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.encoder.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        x, *_ = keras.utils.unpack_x_y_sample_weight(data)
        self.tracker.update_state(self.triplet_loss(x))
        return {"loss": self.tracker.result()}


def siamese_triplets(params):
    model = Triplets()
    model.compile(keras.optimizers.Adam(1e-2), weighted_metrics=[])
    return model


def triplets(rng, count):
    x = pictures(rng, count)
    return {"anchor": x, "positive": blurred(rng, x), "negative": pictures(rng, count)}, np.zeros(count, "float32")


def siamese_pairs(params):
    first, second = keras.Input((SIZE, SIZE, 1), name="first"), keras.Input((SIZE, SIZE, 1), name="second")
    tower = encoder()
    distance = ops.sqrt(ops.sum(ops.square(tower(first) - tower(second)), -1, keepdims=True) + 1e-7)
    model = keras.Model({"first": first, "second": second}, distance)
    model.compile(keras.optimizers.RMSprop(5e-3), contrastive_loss)
    return model


def contrastive_loss(y_true, y_pred):
    y_true = ops.cast(y_true, y_pred.dtype)
    return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * ops.square(ops.maximum(1 - y_pred, 0)))


def pairs(rng, count):
    x = pictures(rng, count)
    differ = rng.integers(0, 2, (count, 1)).astype("float32")
    second = np.where(differ[:, :, None, None] == 1, pictures(rng, count), blurred(rng, x))
    return {"first": x, "second": second}, differ


def views(rng, count):
    x = pictures(rng, count)
    return {"first": blurred(rng, x), "second": blurred(rng, x)}, rows.classes(x, 3)


class SimCLR(keras.Model):
    """Each image is to find the other view of itself among those of the batch; a probe learns classes beside it."""

    def __init__(self):
        super().__init__()
        self.encoder = encoder()
        self.head = keras.Sequential([keras.Input((6,)), layers.Dense(6, activation="relu"), layers.Dense(4)])
        self.probe = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
        self.contrastive = keras.metrics.Mean(name="c_loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    def compile(self, optimizer, probe_optimizer):
        super().compile()
        self.contrastive_optimizer, self.probe_optimizer = optimizer, probe_optimizer

    @property
    def metrics(self):
        return [self.contrastive, self.accuracy]

    def call(self, x):
        return self.probe(self.encoder(x["first"]))

    def contrastive_loss(self, one, other):
        similarities = ops.matmul(ops.normalize(one, axis=1), ops.transpose(ops.normalize(other, axis=1))) / 0.5
        labels = ops.arange(ops.shape(one)[0])
        both = [
            keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            for logits in (similarities, ops.transpose(similarities))
        ]
        return ops.mean(both[0] + both[1]) / 2

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            first, second = (self.head(self.encoder(x[name])) for name in ("first", "second"))
            loss = self.contrastive_loss(first, second)
        weights = self.encoder.trainable_weights + self.head.trainable_weights
        self.contrastive_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.contrastive.update_state(loss)
        with tf.GradientTape() as tape:
            logits = self.probe(self.encoder(x["first"]))
            loss = ops.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.accuracy.update_state(y, logits)
        return {"c_loss": self.contrastive.result(), "p_loss": loss, "p_acc": self.accuracy.result()}


def sim_clr(params):
    model = SimCLR()
    model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.Adam(1e-2))
    return model


class Similarities(keras.Model):
    """Anchors and positives of a batch, each with each; through compute_loss."""

    def __init__(self):
        super().__init__()
        self.encoder = encoder()

    def call(self, x):
        return ops.normalize(self.encoder(x["first"]), axis=-1), ops.normalize(self.encoder(x["second"]), axis=-1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        anchors, positives = y_pred
        similarities = ops.einsum("ae,pe->ap", anchors, positives) / 0.2
        return self.loss(ops.arange(ops.shape(anchors)[0]), similarities)


def batch_similarities(params):
    model = Similarities()
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class DualEncoder(keras.Model):
    """Images and captions; what an image is to find depends on how alike the captions of the batch are."""

    def __init__(self):
        super().__init__()
        self.images = encoder("images")
        self.captions = keras.Sequential(
            [keras.Input((6,), dtype="int32"), layers.Embedding(12, 6), layers.GlobalAveragePooling1D()],
            name="captions",
        )
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def build(self, shapes):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return self.images(x["image"]), self.captions(x["caption"])

    def dual_loss(self, x):
        images, captions = self(x)
        logits = ops.matmul(captions, ops.transpose(images)) * self.scale
        alike = ops.matmul(captions, ops.transpose(captions)) + ops.matmul(images, ops.transpose(images))
        targets = ops.stop_gradient(ops.softmax(alike / 2))
        losses = keras.losses.categorical_crossentropy(targets, logits, from_logits=True)
        losses += keras.losses.categorical_crossentropy(ops.transpose(targets), ops.transpose(logits), from_logits=True)
        return ops.mean(losses) / 2

    def train_step(self, data):
        x, *_ = data
        with tf.GradientTape() as tape:
            loss = self.dual_loss(x)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        x, *_ = data
        self.tracker.update_state(self.dual_loss(x))
        return {"loss": self.tracker.result()}


def dual_encoder(params):
    model = DualEncoder()
    model.compile(keras.optimizers.AdamW(1e-2, weight_decay=1e-3))
    return model


def captions(rng, count):
    x = {"image": pictures(rng, count), "caption": rows.tokens(rng, count, 6, 12)}
    return x, np.zeros(count, "float32")


class SupervisedContrastive(keras.losses.Loss):
    """Rows of a class are to be alike, rows of two are not."""

    def __init__(self, temperature: float = 0.5, **options):
        super().__init__(**options)
        self.temperature = temperature

    def call(self, y_true, y_pred):
        vectors = ops.normalize(y_pred, axis=1)
        count = ops.shape(vectors)[0]
        logits = ops.matmul(vectors, ops.transpose(vectors)) / self.temperature - 1e9 * ops.eye(count)
        labels = ops.reshape(y_true, (-1, 1))
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32") * (1 - ops.eye(count))
        likely = ops.log_softmax(logits) * same
        return -ops.sum(likely, 1) / ops.maximum(ops.sum(same, 1), 1)


def supervised_contrastive(params):
    model = encoder()
    model.compile(keras.optimizers.Adam(1e-2), SupervisedContrastive())
    return model


class Retrieval(keras.Model):
    """Films that a user saw, against those that the other users of the batch saw."""

    def __init__(self):
        super().__init__()
        self.users, self.films = layers.Embedding(12, 6), layers.Embedding(9, 6)

    def call(self, x):
        return self.users(x["user"]), self.films(x["film"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        users, films = y_pred
        scores = ops.matmul(users, ops.transpose(films))
        return ops.sum(keras.losses.categorical_crossentropy(ops.eye(ops.shape(scores)[0]), scores, from_logits=True))


def retrieval(params):
    model = Retrieval()
    model.compile(keras.optimizers.Adagrad(0.1))
    return model


def seen_films(rng, count):
    x = {"user": rng.integers(0, 12, count).astype("int32"), "film": rng.integers(0, 9, count).astype("int32")}
    return x, np.ones(count, "float32")


class BarlowTwins(keras.losses.Loss):
    """The correlation of two views' features, over the batch, is to be one of a feature with itself, else zero."""

    def call(self, y_true, y_pred):
        one, other = ops.split(y_pred, 2, axis=1)
        one, other = ((part - ops.mean(part, 0)) / (ops.std(part, 0) + 1e-5) for part in (one, other))
        correlation = ops.matmul(ops.transpose(one), other) / ops.cast(ops.shape(one)[0], one.dtype)
        eye = ops.eye(ops.shape(correlation)[0])
        return ops.sum((0.05 + 0.95 * eye) * ops.square(correlation - eye))


def barlow_twins(params):
    first, second = keras.Input((SIZE, SIZE, 1), name="first"), keras.Input((SIZE, SIZE, 1), name="second")
    tower = encoder()
    model = keras.Model({"first": first, "second": second}, ops.concatenate([tower(first), tower(second)], -1))
    model.compile(keras.optimizers.Adam(1e-2), BarlowTwins())
    return model


class OnlineNetwork(keras.Model):
    """Predicts what a slower copy of itself says of another view of the same image; no row sees another."""

    def __init__(self):
        super().__init__()
        self.online, self.target = encoder("online"), encoder("target")
        self.target.trainable = False
        self.predictor = layers.Dense(6)
        self.target.set_weights(self.online.get_weights())

    def call(self, x):
        return self.predictor(self.online(x["first"]))

    def train_step(self, data):
        x, *_ = data
        with tf.GradientTape() as tape:
            targets = ops.stop_gradient(self.target(x["second"]))
            loss = ops.mean(1 - ops.sum(ops.normalize(self(x), axis=-1) * ops.normalize(targets, axis=-1), -1))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for slow, fast in zip(self.target.variables, self.online.variables, strict=True):
            slow.assign(slow * 0.9 + fast * 0.1)
        return {"loss": loss}


def online_network(params):
    model = OnlineNetwork()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return model


class Margin(layers.Layer):
    """Cosines to the centres of classes; that of the right class must exceed the others by more than it would."""

    def __init__(self, labels: int, **options):
        super().__init__(**options)
        self.labels = labels

    def build(self, shapes):
        self.centres = self.add_weight(shape=(shapes[0][-1], self.labels), name="centres")

    def call(self, inputs):
        x, label = inputs
        cosines = ops.matmul(ops.normalize(x, axis=1), ops.normalize(self.centres, axis=0))
        return 8 * (cosines - 0.2 * ops.one_hot(label, self.labels))

    def compute_output_shape(self, shapes):
        return (shapes[0][0], self.labels)


def angular_margin(params):
    image, label = keras.Input((SIZE, SIZE, 1), name="image"), keras.Input((), dtype="int32", name="label")
    model = keras.Model({"image": image, "label": label}, Margin(3)([encoder()(image), label]))
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def labelled_twice(rng, count):
    x = pictures(rng, count)
    label = rows.classes(x, 3)
    return {"image": x, "label": label}, label


def ranking(params):
    """Which of a list's four documents come first: each row is a list."""
    inputs = keras.Input((4, 5))
    scores = layers.Flatten()(layers.Dense(1)(layers.Dense(8, activation="relu")(inputs)))
    model = keras.Model(inputs, scores)
    model.compile(keras.optimizers.Adam(1e-2), pairwise_loss)
    return model


def pairwise_loss(y_true, y_pred):
    order = ops.cast(y_true[:, :, None] > y_true[:, None, :], y_pred.dtype)
    margins = y_pred[:, :, None] - y_pred[:, None, :]
    return ops.sum(order * ops.softplus(-margins), (1, 2))


def lists(rng, count):
    x = rows.numbers(rng, count, 4, 5)
    return x, (x[:, :, 0] > 0).astype("int32") + (x[:, :, 0] > 1)


COUPLED = dict(rows_coupled=True)
STEPPING = dict(own_train_step=True, asynchronous=False)

CASES = (
    Case("siamese_triplets", siamese_triplets, triplets, **STEPPING, note="one encoder called three times"),
    Case("siamese_pairs", siamese_pairs, pairs, note="shared encoder; loss function of the mean of a batch"),
    Case("sim_clr", sim_clr, views, **STEPPING, **COUPLED, note="views against the batch; a probe beside"),
    Case("batch_similarities", batch_similarities, views, **COUPLED, note="compute_loss compares rows"),
    Case("dual_encoder", dual_encoder, captions, **STEPPING, **COUPLED, note="images against captions, own scale"),
    Case("supervised_contrastive", supervised_contrastive, rows.images(SIZE), **COUPLED, note="a Loss over rows"),
    Case("retrieval", retrieval, seen_films, **COUPLED, note="negatives are the other rows; built by its first batch"),
    Case("barlow_twins", barlow_twins, views, **COUPLED, note="correlation over the batch"),
    Case("online_network", online_network, views, **STEPPING, note="BYOL: a slow copy, assigned in train_step"),
    Case("angular_margin", angular_margin, labelled_twice, note="the label is an input as well"),
    Case("ranking", ranking, lists, note="pairs inside each row"),
)

"""Models with a train_step of their own."""

from __future__ import annotations

import types

import keras
import tensorflow as tf
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case


def parts(outputs: int = 3, units: int = 8, **options):
    """Inputs and outputs of two Dense layers."""
    inputs = keras.Input((8,))
    return inputs, layers.Dense(outputs, **options)(layers.Dense(units, activation="tanh")(inputs))


def logits_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class PlainStep(keras.Model):
    """What Keras's guide shows: loss, gradients, metrics."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply(gradients, trainable_vars)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def plain_step(params):
    model = PlainStep(*parts(1, activation="sigmoid"))
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


class OwnMetrics(keras.Model):
    """Without loss and metrics in compile(); with a test_step."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self):
        return [self.loss_tracker, self.error]

    def track(self, y, y_pred):
        loss = ops.mean(keras.losses.mean_squared_error(y, y_pred))
        self.loss_tracker.update_state(loss)
        self.error.update_state(y, y_pred)
        return loss

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.track(y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        self.track(y, self(x, training=False))
        return {metric.name: metric.result() for metric in self.metrics}


def own_metrics(params):
    model = OwnMetrics(*parts(1))
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return model


class WeightedStep(keras.Model):
    """Hands weights of rows on."""

    def train_step(self, data):
        if len(data) == 3:
            x, y, sample_weight = data
        else:
            sample_weight = None
            x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {**self.compute_metrics(x, y, y_pred, sample_weight), "loss": loss}


def weighted_step(params):
    model = WeightedStep(*parts(1))
    model.compile(keras.optimizers.RMSprop(1e-2), "mse", weighted_metrics=["mae"])
    return model


def weighted(rng, count):
    x, y = rows.regression()(rng, count)
    return x, y, rng.uniform(0.1, 3, count).astype("float32")


class CountingModel(keras.Model):
    """Counts its steps around Keras's own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")

    def train_step(self, data):
        self.steps.assign_add(1)
        logs = super().train_step(data)
        return {**logs, "steps": ops.cast(self.steps, "float32")}


def super_step(params):
    model = CountingModel(*parts())
    model.compile(keras.optimizers.SGD(0.2), logits_loss(), metrics=["accuracy"])
    return model


class PreparedModel(keras.Model):
    """Changes its data, then has Keras's own step."""

    def train_step(self, data):
        x, y = data
        return super().train_step((ops.clip(x, -1.5, 1.5), y))


def prepared(params):
    model = PreparedModel(*parts())
    model.compile(keras.optimizers.Adam(1e-2), logits_loss(), metrics=["accuracy"])
    return model


def instance_step(params):
    """A plain Model whose train_step is set on the instance."""
    model = keras.Model(*parts())
    model.compile(keras.optimizers.Adam(1e-2), logits_loss(), metrics=["accuracy"])

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
        gradients = [2 * gradient for gradient in tape.gradient(loss, self.trainable_weights)]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {**self.compute_metrics(x, y, y_pred, sample_weight), "loss": loss}

    model.train_step = types.MethodType(train_step, model)
    return model


class Distiller(keras.Model):
    """A student that learns from labels and from what a teacher says."""

    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False

    def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha=0.3, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss
        self.alpha, self.temperature = alpha, temperature

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        told = ops.softmax(self.teacher(x, training=False) / self.temperature)
        said = ops.softmax(y_pred / self.temperature)
        distillation = self.distillation_loss(told, said) * self.temperature**2
        return self.alpha * self.student_loss(y, y_pred) + (1 - self.alpha) * distillation


class SteppingDistiller(Distiller):
    """The same as it was written for Keras 2."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.student(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}

    def test_step(self, data):
        x, y = data
        return {"student_loss": self.student_loss(y, self.student(x, training=False))}


def distiller(kind):
    def build(params):
        model = kind(keras.Model(*parts(units=4)), keras.Model(*parts(units=16)))
        model.compile(
            keras.optimizers.Adam(1e-2),
            ["accuracy"],
            student_loss=logits_loss(),
            distillation_loss=keras.losses.KLDivergence(),
        )
        return model

    return build


class AdversarialModel(keras.Model):
    """Also learns rows moved to where the loss grows."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(x, y, self(x, training=True))
        moved = ops.stop_gradient(x + 0.1 * ops.sign(tape.gradient(loss, x)))
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred) + 0.5 * self.compute_loss(moved, y, self(moved, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {**self.compute_metrics(x, y, y_pred), "loss": loss}


def adversarial(params):
    model = AdversarialModel(*parts())
    model.compile(keras.optimizers.Adam(1e-2), logits_loss(), metrics=["accuracy"])
    return model


class SharpnessAware(keras.Model):
    """Gradients at the weights, then at weights further up; the latter are applied where the former were taken."""

    radius = 0.05

    def train_step(self, data):
        x, y = data
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, weights)
        norm = tf.linalg.global_norm(gradients)
        climbs = [gradient * self.radius / (norm + 1e-12) for gradient in gradients]
        for weight, climb in zip(weights, climbs, strict=True):
            weight.assign_add(climb)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, weights)
        for weight, climb in zip(weights, climbs, strict=True):
            weight.assign_sub(climb)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {**self.compute_metrics(x, y, y_pred), "loss": loss}


def sharpness_aware(params):
    model = SharpnessAware(*parts())
    model.compile(keras.optimizers.SGD(0.2), logits_loss(), metrics=["accuracy"])
    return model


class TwoRates(keras.Model):
    """A body and a head, each with an optimizer; gradients of both are clipped by hand."""

    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([keras.Input((8,)), layers.Dense(8, activation="relu")], name="body")
        self.head = keras.Sequential([keras.Input((8,)), layers.Dense(3)], name="head")

    def compile(self, body_optimizer, head_optimizer, loss):
        super().compile(loss=loss, metrics=["accuracy"])
        self.body_optimizer, self.head_optimizer = body_optimizer, head_optimizer

    def call(self, x):
        return self.head(self.body(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x)
            loss = self.compute_loss(x, y, y_pred)
        body, head = self.body.trainable_weights, self.head.trainable_weights
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, body + head), 0.5)
        self.body_optimizer.apply_gradients(zip(gradients[: len(body)], body, strict=True))
        self.head_optimizer.apply_gradients(zip(gradients[len(body) :], head, strict=True))
        return {**self.compute_metrics(x, y, y_pred), "loss": loss}


def two_rates(params):
    model = TwoRates()
    model.compile(keras.optimizers.SGD(0.05), keras.optimizers.Adam(1e-2), logits_loss())
    return model


class Consistency(keras.Model):
    """Labels of a teacher that follows the student; some rows have a label of their own, the others -1."""

    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False
        self.teacher.set_weights(student.get_weights())
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.teacher(x["plain"])

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self.student(x["noisy"], training=True)
            known = ops.cast(y >= 0, "float32")
            told = keras.losses.sparse_categorical_crossentropy(ops.maximum(y, 0), logits, from_logits=True)
            wanted = ops.softmax(self.teacher(x["plain"], training=False))
            apart = ops.mean(ops.square(ops.softmax(logits) - wanted), -1)
            loss = ops.mean(known * told + apart)
        weights = self.student.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for slow, fast in zip(self.teacher.weights, self.student.weights, strict=True):
            slow.assign(0.95 * slow + 0.05 * fast)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def consistency(params):
    model = Consistency(keras.Model(*parts()), keras.Model(*parts()))
    model.compile(keras.optimizers.Adam(1e-2))
    return model


def half_labelled(rng, count):
    plain, y = rows.vectors()(rng, count)
    y[rng.uniform(size=count) < 0.5] = -1
    return {"plain": plain, "noisy": plain + 0.1 * rows.numbers(rng, count, 8)}, y


class PhysicsInformed(keras.Model):
    """A function with f' = -f: gradients of outputs by inputs inside those of the loss."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                found = self(x, training=True)
            slope = inner.gradient(found, x)
            loss = ops.mean(ops.square(slope + found)) + ops.mean(ops.square(ops.where(x == 0, found - y, 0.0)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def physics_informed(params):
    inputs = keras.Input((1,))
    model = PhysicsInformed(inputs, layers.Dense(1)(layers.Dense(8, activation="tanh")(inputs)))
    model.compile(keras.optimizers.Adam(1e-2))
    return model


def times(rng, count):
    x = rows.shares(rng, count, 1) * 2
    x[::4] = 0
    return x, ops.convert_to_numpy(ops.exp(-x))


class ScaledStep(keras.Model):
    """Scales the loss as Keras's own step does."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}


def scaled_step(params):
    model = ScaledStep(*parts())
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), initial_scale=256.0), logits_loss())
    return model


class ManualAccumulation(keras.Model):
    """Gathers gradients in variables of its own and applies them every second step."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.turn = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="turn")
        self.gathered = [
            self.add_weight(shape=v.shape, initializer="zeros", trainable=False, name="gathered")
            for v in self.trainable_variables
        ]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for sum_, gradient in zip(self.gathered, tape.gradient(loss, self.trainable_variables), strict=True):
            sum_.assign_add(gradient / 2)
        self.turn.assign_add(1)
        tf.cond(self.turn.value % 2 == 0, self.apply_gathered, lambda: None)
        return {"loss": loss}

    def apply_gathered(self):
        self.optimizer.apply([sum_.value for sum_ in self.gathered], self.trainable_variables)
        for sum_ in self.gathered:
            sum_.assign(ops.zeros_like(sum_))


def manual_accumulation(params):
    model = ManualAccumulation(*parts())
    model.compile(keras.optimizers.SGD(0.3), logits_loss())
    model.optimizer.build(model.trainable_variables)
    return model


def stepping(name, build, data, **rest):
    return Case(name, build, data, own_train_step=True, asynchronous=False, **rest)


CASES = (
    stepping("plain_step", plain_step, rows.regression(), note="as in Keras's guide: x, y = data"),
    stepping("own_metrics", own_metrics, rows.regression(), note="own metrics, own test_step"),
    stepping("weighted_step", weighted_step, weighted, note="weights of rows, handed on"),
    stepping("super_step", super_step, rows.vectors(), note="super().train_step, a counter of steps"),
    stepping("prepared", prepared, rows.vectors(), note="super().train_step of changed data"),
    stepping("instance_step", instance_step, rows.vectors(), note="train_step set on the instance; doubles gradients"),
    Case("distillation", distiller(Distiller), rows.vectors(), note="compute_loss; frozen teacher"),
    stepping("distillation_step", distiller(SteppingDistiller), rows.vectors(), note="train_step, test_step, compile"),
    stepping("adversarial", adversarial, rows.vectors(), note="gradients of rows, then of weights"),
    stepping("sharpness_aware", sharpness_aware, rows.vectors(), note="gradients twice; the first move the weights"),
    stepping("two_rates", two_rates, rows.vectors(), note="two optimizers; clip_by_global_norm by hand"),
    stepping("consistency", consistency, half_labelled, note="mean teacher; half the rows have a label"),
    stepping("physics_informed", physics_informed, times, note="gradients inside gradients"),
    stepping("scaled_step", scaled_step, rows.vectors(), note="LossScaleOptimizer, scale_loss by hand"),
    stepping("manual_accumulation", manual_accumulation, rows.vectors(), note="applies gradients every second step"),
)

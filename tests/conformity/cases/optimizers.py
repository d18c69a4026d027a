"""Optimizers, each on the same small network."""

from __future__ import annotations

import keras
from keras import layers, ops, optimizers

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case


def of_tokens(optimizer):
    """Of a function that makes an optimizer; with an Embedding, whose gradient is one of rows."""

    def build(params):
        inputs = keras.Input((8,), dtype="int32")
        x = layers.Flatten()(layers.Embedding(10, 3)(inputs))
        x = layers.Dense(8, activation="tanh", name="hidden")(x)
        model = keras.Model(inputs, layers.Dense(2, name="head")(x))
        made = optimizer()
        model.compile(made, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    return build


def of_numbers(optimizer):
    def build(params):
        inputs = keras.Input((8,))
        x = layers.Dense(8, activation="tanh", name="hidden")(inputs)
        model = keras.Model(inputs, layers.Dense(3, name="head")(x))
        made = optimizer()
        model.compile(made, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    return build


def without_biases():
    optimizer = optimizers.AdamW(1e-2, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def by_layer():
    """The hidden layer by one, the others by another."""
    hidden = {"hidden/.*": optimizers.SGD(0.5)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.Adam(1e-2), hidden))


class SignedMomentum(optimizers.Optimizer):
    """An optimizer of one's own, with a variable a weight and one beside."""

    def __init__(self, learning_rate=0.01, momentum=0.8, name="signed_momentum", **options):
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum = momentum

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.moments = [self.add_variable_from_reference(v, name="moment") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        moment = self.moments[self._get_variable_index(variable)]
        moment.assign(self.momentum * moment + (1 - self.momentum) * ops.cast(gradient, moment.dtype))
        variable.assign_sub(ops.cast(learning_rate, variable.dtype) * ops.sign(moment))

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}


class Stairs(optimizers.schedules.LearningRateSchedule):
    """A schedule of one's own."""

    def __call__(self, step):
        return 0.5 / (1.0 + ops.floor(ops.cast(step, "float32") / 2))

    def get_config(self):
        return {}


schedules = optimizers.schedules

OPTIMIZERS = {
    "sgd": (lambda: optimizers.SGD(0.5), "SGD"),
    "momentum": (lambda: optimizers.SGD(0.2, momentum=0.9), "SGD with momentum"),
    "nesterov": (lambda: optimizers.SGD(0.2, momentum=0.9, nesterov=True), "SGD with Nesterov's momentum"),
    "adam": (lambda: optimizers.Adam(1e-2), "Adam"),
    "amsgrad": (lambda: optimizers.Adam(1e-2, amsgrad=True), "Adam(amsgrad=True)"),
    "adamw": (without_biases, "AdamW; biases do not decay"),
    "adamax": (lambda: optimizers.Adamax(1e-2), "Adamax"),
    "nadam": (lambda: optimizers.Nadam(1e-2), "Nadam, which keeps a product of momenta"),
    "adagrad": (lambda: optimizers.Adagrad(0.1), "Adagrad"),
    "adadelta": (lambda: optimizers.Adadelta(5.0), "Adadelta"),
    "adafactor": (lambda: optimizers.Adafactor(0.05), "Adafactor: moments of rows and of columns"),
    "rmsprop": (lambda: optimizers.RMSprop(1e-2), "RMSprop"),
    "rmsprop_centered": (lambda: optimizers.RMSprop(1e-2, momentum=0.5, centered=True), "RMSprop(centered=True)"),
    "ftrl": (lambda: optimizers.Ftrl(0.1, l1_regularization_strength=1e-3), "Ftrl"),
    "lion": (lambda: optimizers.Lion(5e-3), "Lion: the sign of a gradient"),
    "lamb": (lambda: optimizers.Lamb(2e-2), "Lamb: norms of weights and of updates"),
    "muon": (lambda: optimizers.Muon(1e-2, exclude_layers=["head"]), "Muon: matrices made orthogonal"),
    "schedule_free": (lambda: optimizers.ScheduleFreeAdamW(1e-2), "ScheduleFreeAdamW"),
    "optimizers_by_layer": (by_layer, "MultiOptimizer"),
    "own_optimizer": (SignedMomentum, "an optimizer of one's own"),
    "exponential_decay": (
        lambda: optimizers.Adam(schedules.ExponentialDecay(2e-2, 1, 0.7)),
        "ExponentialDecay of the learning rate",
    ),
    "cosine_decay": (
        lambda: optimizers.SGD(schedules.CosineDecay(0.05, 4, warmup_target=0.5, warmup_steps=2), momentum=0.9),
        "CosineDecay after a warm-up",
    ),
    "piecewise": (
        lambda: optimizers.Adam(schedules.PiecewiseConstantDecay([1, 2], [2e-2, 1e-2, 5e-3])),
        "PiecewiseConstantDecay",
    ),
    "own_schedule": (lambda: optimizers.SGD(Stairs()), "a schedule of one's own"),
    "moving_average": (lambda: optimizers.Adam(1e-2, use_ema=True, ema_momentum=0.9), "use_ema"),
    "overwriting_average": (
        lambda: optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
        "use_ema that overwrites the weights every second step",
    ),
    "accumulation": (
        lambda: optimizers.Adam(2e-2, gradient_accumulation_steps=2),
        "gradient_accumulation_steps=2: every second step changes weights",
    ),
    "decay": (lambda: optimizers.SGD(0.3, momentum=0.9, weight_decay=0.05), "SGD with weight_decay"),
    "clipvalue": (lambda: optimizers.SGD(20.0, clipvalue=1e-3), "clipvalue"),
    "clipnorm": (lambda: optimizers.SGD(2.0, clipnorm=0.02), "clipnorm, of each weight"),
    "global_clipnorm": (lambda: optimizers.SGD(2.0, global_clipnorm=0.05), "global_clipnorm"),
    "loss_scale": (
        lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.5), initial_scale=1024.0, dynamic_growth_steps=2),
        "LossScaleOptimizer, whose scale grows",
    ),
    "fixed_loss_scale": (lambda: optimizers.SGD(0.5, loss_scale_factor=128.0), "loss_scale_factor"),
}

DENSE = {"rmsprop_centered", "own_optimizer", "fixed_loss_scale"}
"""What does not take the gradient of an Embedding; the first and the last are Keras's."""

CASES = tuple(
    Case(name, of_numbers(optimizer), rows.vectors(), note=note)
    if name in DENSE
    else Case(name, of_tokens(optimizer), rows.sentences(8, 10), note=note)
    for name, (optimizer, note) in OPTIMIZERS.items()
)

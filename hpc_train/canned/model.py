"""The Keras model of a canned estimator."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from hpc_train.canned.arguments import Canned, Optimizer, as_plain, from_plain
from hpc_train.canned.head import head_of
from hpc_train.canned.keras_objects import deserialized
from hpc_train.canned.refusal import allowed_alone
from hpc_train.canned.towers import DeepTower, LinearTower
from hpc_train.canned.transformation import Batch, lookups_of
from hpc_train.errors import UserError
from hpc_train.optimizers import ftrl  # noqa: F401  (Keras finds it by its registered name)

LINEAR = "linear/.*"
"""The paths of the linear tower's variables."""


@keras.saving.register_keras_serializable(package="hpc_train")
class CannedModel(keras.Model):  # type: ignore[misc]
    """Features by name to logits, float32 `[B, units]`; predict_step gives predictions by Estimator's names.

    A class of its own, since a Functional model has to know how many values a row of each feature has, and since its
    loss and metrics take labels that are texts, and weights that are a feature. All variables are there when it is
    made, called as in a checkpoint of tf.estimator.
    """

    def __init__(self, canned: Canned) -> None:
        super().__init__(name=canned.name, autocast=False)
        self._canned, self.head = canned, head_of(canned.task)
        lookups = lookups_of(canned.columns)
        self._vocabularies, self._lookups = tuple(lookups), list(lookups.values())
        self.linear: Any = LinearTower(canned.wide, self.head.units) if canned.wide else None
        self.dnn: Any = DeepTower(canned.deep, self.head.units) if canned.deep else None
        for tower in (self.linear, self.dnn):
            if tower is not None:
                tower.build()
        self.built = True

    @property
    def label_classes(self) -> int | None:
        """How many classes labels are the numbers of; None: they are none."""
        return self.head.classes

    @property
    def label_vocabulary(self) -> tuple[str, ...] | None:
        """The classes, where labels are texts."""
        return self._canned.task.label_vocabulary

    @property
    def serving_features(self) -> list[str]:
        """The features that predictions are made of."""
        return self._canned.keys

    def call(self, features: Any, training: bool | None = None) -> Any:
        """The logits of a batch: the sum of those of the towers."""
        lookups = dict(zip(self._vocabularies, self._lookups, strict=True))
        batch, canned = Batch(self._by_name(features), lookups), self._canned
        logits = []
        if canned.wide:
            logits.append(self.linear(batch.inputs(canned.wide.columns, linear=True)))
        if canned.deep:
            logits.append(self.dnn(batch.inputs(canned.deep.columns, linear=False), training=training))
        return keras.ops.cast(sum(logits), "float32")

    def _by_name(self, features: Any) -> Mapping[str, Any]:
        if isinstance(features, Mapping):
            return features
        if len(self.serving_features) > 1 or isinstance(features, list | tuple):
            raise UserError(
                f"{self._canned.name} takes a dict of features by name, {', '.join(self.serving_features)}; name them "
                "in the input's `features`"
            )
        return {self.serving_features[0]: features}

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """The loss of a batch, with the weights of its rows."""
        return super().compute_loss(x, self.head.labels(y), y_pred, self._weights(x, y, sample_weight), training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The metrics so far, with the weights of the rows."""
        return super().compute_metrics(x, self.head.labels(y), y_pred, self._weights(x, y, sample_weight))

    def _weights(self, features: Any, labels: Any, given: Any) -> Any | None:
        """The weight of each row, float32 `[B]`: the column's, times what the batch has; None where all count alike.

        That of a label which is unknown is NaN, so that nothing is learnt from it.

        Raises:
            UserError: The column has a negative one.
        """
        found = [self.head.known(labels)]
        if given is not None:
            found.append(tf.cast(tf.reshape(given, [-1]), tf.float32))
        if (column := self._canned.task.weight_column) is not None:
            given = tf.reshape(Batch(self._by_name(features), {}).numbers(column), [-1])
            what = (
                f"weight_column {column.key!r} has a negative number, by which no row can count; write numbers from 0 "
                "on into the data"
            )
            found.append(allowed_alone(given, given < 0, what))
        weights = [each for each in found if each is not None]
        return math.prod(weights[1:], start=weights[0]) if weights else None

    def predict_step(self, data: Any) -> dict[str, Any]:
        """Predictions of a batch by name."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.head.predictions(self(x, training=False))

    def get_config(self) -> dict[str, Any]:
        """What it can be made from again."""
        return {"canned": json.loads(json.dumps(as_plain(self._canned), default=str))}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> CannedModel:
        """A model of a config, with initial values."""
        return cls(from_plain(config["canned"]))


def compiled(canned: Canned) -> CannedModel:
    """The model, compiled: with an optimizer for each tower, where there are two."""
    model = CannedModel(canned)
    task = canned.task
    scale = float(task.label_dimension) if task.loss_reduction == "sum" else None  # Keras takes the mean of a row's
    model.compile(
        optimizer=_optimizer(canned), loss=model.head.loss(), loss_weights=scale, weighted_metrics=model.head.metrics()
    )
    return model


def _optimizer(canned: Canned) -> Any:
    def made(config: Optimizer) -> Any:
        return deserialized(canned.name, config, "optimizers")

    if canned.wide and canned.deep:
        optimizers = keras.optimizers
        linear, dnn = made(canned.wide.optimizer), made(canned.deep.optimizer)
        return optimizers.MultiOptimizer(optimizers.OptimizerMap(dnn, {LINEAR: linear}))
    tower = canned.wide or canned.deep
    assert tower is not None, "there is one tower at least"
    return made(tower.optimizer)

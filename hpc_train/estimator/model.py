"""The user's model: built, checked, and its variables read and set by name."""

from __future__ import annotations

import hashlib
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.checkpoint.format import Snapshot
from hpc_train.cluster.world import World
from hpc_train.data.sampler import DataOrder, DataProgress
from hpc_train.data.shuffle import derive_seed
from hpc_train.errors import UserError
from hpc_train.estimator.estimator import Estimator

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def build_model(estimator: Estimator, dataset: tf.data.Dataset) -> keras.Model:
    """Calls `model_fn`, and creates every variable of the model, its optimizer and its metrics. Local.

    Args:
        dataset: Batches that the model takes. One is read only where `element_spec` leaves open more than its rows.

    Raises:
        UserError: `model_fn` returned something other than a compiled Keras model with a loss and something to
            train, or one that replaces the training step.
        Whatever `model_fn` or the model raise.
    """
    import keras

    if estimator.config.tf_random_seed is not None:
        keras.utils.set_random_seed(estimator.config.tf_random_seed)
    model = estimator.model_fn(dict(estimator.params))
    name = getattr(estimator.model_fn, "__qualname__", "model_fn")
    if not isinstance(model, keras.Model):
        raise UserError(f"{name} returned {type(model).__name__}; it must return a compiled keras.Model")
    if not model.compiled or model.optimizer is None:
        raise UserError(f"{name} returned an uncompiled model; call model.compile(optimizer=…, loss=…) in it")
    if type(model).train_step is not keras.Model.train_step:
        raise UserError(
            f"{name} returned a {type(model).__name__} with a train_step of its own, which would not be called: "
            "gradients are averaged over ranks between its two halves; override compute_loss instead"
        )
    try:
        try_out(model, dataset)
    except ValueError:
        if model.loss is None and not model.losses and type(model).compute_loss is keras.Model.compute_loss:
            raise UserError(f"{name} returned a model without a loss; give model.compile(loss=…)") from None
        raise
    if not model.trainable_variables:
        raise UserError(f"{name} returned a model with nothing to train: all its variables are frozen")
    model.optimizer.build(model.trainable_variables)
    return model


def try_out(model: keras.Model, dataset: tf.data.Dataset) -> None:
    """Evaluates one batch like those of `dataset`, which builds model and metrics, or shows what does not fit. Local.

    The batch is one row of zeros where the shapes are known, else the first of the dataset.
    """
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec)
    if all(spec.shape.rank and spec.shape[1:].is_fully_defined() for spec in specs):
        batch = tf.nest.map_structure(
            lambda spec: tf.zeros([spec.shape[0] or 1, *spec.shape[1:]], spec.dtype), dataset.element_spec
        )
    else:
        batch = next(iter(dataset.take(1)), None)
        if batch is None:
            raise UserError("the input has no batches")
    model.test_step(batch)
    model.reset_metrics()


def sparse_classes(model: keras.Model, labels: list[str]) -> dict[str, tuple[int, int | None]]:
    """Of the labels that Keras's sparse cross-entropy compares with an output: classes, and the label it leaves out.

    Known for models with one output, and with outputs and losses by name.
    """
    import keras

    if type(model).compute_loss is not keras.Model.compute_loss:
        return {}
    outputs, named, loss = getattr(model, "outputs", None), getattr(model, "output", None), model.loss
    if isinstance(loss, dict) and isinstance(named, dict):
        compared = [(label, loss.get(label), named[label]) for label in labels if label in named]
    elif outputs and len(outputs) == len(labels) == 1:
        alone = list(loss.values()) if isinstance(loss, dict) else loss if isinstance(loss, list | tuple) else [loss]
        compared = [(labels[0], alone[0], outputs[0])] if len(alone) == 1 else []
    else:
        compared = []
    found = {}
    for label, own_loss, own_output in compared:
        known = own_loss in ("sparse_categorical_crossentropy", keras.losses.sparse_categorical_crossentropy)
        if known or type(own_loss) is keras.losses.SparseCategoricalCrossentropy:
            classes = own_output.shape[getattr(own_loss, "axis", -1)]
            if classes is not None:
                found[label] = (int(classes), getattr(own_loss, "ignore_class", None))
    return found


class ModelState:
    """The variables of a model and of its optimizer, by path, across ranks."""

    def __init__(self, model: keras.Model, world: World) -> None:
        self._world = world
        self._model = _by_path(model.variables)
        self._optimizer = _by_path(model.optimizer.variables)
        trainable = {id(v) for v in model.trainable_variables}
        self._averaged = [
            v for v in self._model.values() if id(v) not in trainable and np.issubdtype(_numpy(v).dtype, np.floating)
        ]
        self._random = [v for v in self._model.values() if _is_random_state(v)]

    def check_ranks(self) -> None:
        """UserError where ranks have built different models. Collective."""
        signatures = [_without_counters(_signature(p, v)) for p, v in [*self._model.items(), *self._optimizer.items()]]
        digests = self._world.all_gather(hashlib.sha256("\n".join(signatures).encode()).hexdigest())
        differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if differing:
            raise UserError(
                f"model_fn built another model on rank {differing[0]} than on rank 0; it must not depend on the rank"
            )

    def check(self, snapshot: Snapshot, where: str) -> None:
        """UserError, naming the first variable that differs, where `snapshot` is of another model."""
        for kind, variables in (("model", self._model), ("optimizer", self._optimizer)):
            saved = getattr(snapshot, kind)
            names, saved_names = list(variables), list(saved)
            for i in range(max(len(names), len(saved_names))):
                here = _signature(names[i], variables[names[i]]) if i < len(names) else "no such variable"
                there = _signature(saved_names[i], saved[saved_names[i]]) if i < len(saved_names) else "none"
                if _without_counters(here) != _without_counters(there):
                    raise UserError(
                        f"{where}: holds another model: {kind} variable {i} is {there} there, but {here} here; "
                        "choose another job-dir, or the model that was trained in this one"
                    )

    def snapshot(self, progress: DataProgress, order: DataOrder | None) -> Snapshot:
        """A copy of all variables, on the chief."""
        model = {path: _numpy(v) for path, v in self._model.items()}
        optimizer = {path: _numpy(v) for path, v in self._optimizer.items()}
        return Snapshot(model, optimizer, progress, order, self._world.size, time.time())

    def share(self, snapshot: Snapshot | None) -> None:
        """Gives all ranks the chief's state: `snapshot` where it has one, else its variables. Collective.

        Random states (dropout and the like) are then made different on every rank: rank r's seed derives from the
        chief's and r, so that a restart on any number of ranks finds the same ones.
        """
        variables = [*self._model.values(), *self._optimizer.values()]
        arrays = [_numpy(v) for v in variables]
        if snapshot is not None:
            arrays = [*snapshot.model.values(), *snapshot.optimizer.values()]
        self._world.broadcast_arrays(arrays)
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)
        if not self._world.is_chief:
            for variable in self._random:
                seed, *rest = _numpy(variable)
                variable.assign(np.array([derive_seed(int(seed), 0, self._world.rank) % 2**32, *rest], np.uint32))

    def average(self) -> None:
        """Replaces non-trainable floating-point variables (batch-norm averages) by their mean over ranks. Collective.

        Uses float64 sums over MPI.
        """
        if self._world.size == 1 or not self._averaged:
            return
        values = [_numpy(v) for v in self._averaged]
        flat = np.concatenate([value.astype(np.float64).ravel() for value in values])
        flat = self._world.sum(flat) / self._world.size
        start = 0
        for variable, value in zip(self._averaged, values, strict=True):
            variable.assign(flat[start : start + value.size].reshape(value.shape).astype(value.dtype))
            start += value.size


def _by_path(variables: list[Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for variable in variables:
        path, count = variable.path, 1
        while path in named:
            count += 1
            path = f"{variable.path}#{count}"
        named[path] = variable
    return named


def _numpy(variable: Any) -> np.ndarray:
    return np.array(variable.numpy() if hasattr(variable, "numpy") else variable, order="C")


def _is_random_state(variable: Any) -> bool:
    """Whether this is the state of a keras.random.SeedGenerator: uint32 [seed, counter]."""
    return variable.name == "seed_generator_state" and variable.dtype == "uint32" and tuple(variable.shape) == (2,)


def _signature(path: str, variable: Any) -> str:
    array = _numpy(variable)
    return f"{path} {array.dtype.name} {list(array.shape)}"


def _without_counters(signature: str) -> str:
    """Keras numbers the layers of a process (dense, dense_1, …), so the same model built twice has other numbers."""
    return re.sub(r"_\d+(?=[/ _])", "", signature)

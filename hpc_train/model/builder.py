"""The user's model: built and checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Literal

import numpy as np

from hpc_train.config.estimator import Estimator
from hpc_train.config.functions import PARAMS, call
from hpc_train.distributed.building import building
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.backward import loss_of
from hpc_train.model.batch import example, left_alone
from hpc_train.model.layer_states import from_zero
from hpc_train.model.learning_rate import with_cycle
from hpc_train.model.mismatch import as_raised, failed_metric, in_own_code, mismatch
from hpc_train.model.notes import xla_asked_for
from hpc_train.model.own_steps import has_own_test_step, has_own_train_step

log = logging.getLogger(__name__)


Trial = Callable[["keras.Model", "tf.data.Dataset", str], None]
"""Makes the variables of a model and its metrics from a batch, or shows what does not fit; the text names the model."""


def build_model(estimator: Estimator, dataset: tf.data.Dataset, trial: Trial | None = None) -> keras.Model:
    """Calls `model_fn`, and creates every variable of the model and its metrics; not its optimizer's. Local.

    All random numbers are seeded before with run.tf_random_seed, where there is one, alike on all ranks.

    With run.mixed_precision, both happen under Keras's policy for it, and a model in float16 has a loss scale then.

    Args:
        dataset: Batches that the model takes. One is read only where `element_spec` leaves open more than its rows.
        trial: How the model is tried out; None: one batch is evaluated.

    Raises:
        UserError: `model_fn` returned something other than a compiled Keras model with a loss and something to
            train, or one that computes in another precision than the one asked for, does not take the rows of
            `dataset`, or has a metric that does not.
        Whatever `model_fn` or the model raise.
    """
    rng_state.seed_all(estimator.config.tf_random_seed)
    precision = estimator.config.mixed_precision
    name = getattr(estimator.model_fn, "__qualname__", "model_fn")
    kinds = ValueError, TypeError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError
    with building(), _policy(precision), xla_asked_for() as asked:
        try:
            model = _called(estimator, name)
        except UserError as error:
            raise as_raised(error) from None
        except kinds as error:
            _refuse_parts(error, estimator, dataset, name)
            raise
        try:
            (trial or _try_loss)(model, dataset, name)
        except Exception as error:
            if (failed := failed_metric(error)) is not None:
                raise UserError(f"{name}: {failed}") from None
            if not isinstance(error, kinds):
                raise
            if not isinstance(error, UserError):
                _refuse_parts(error, estimator, dataset, name)
            if model.loss is None and not model.losses and type(model).compute_loss is keras.Model.compute_loss:
                raise UserError(f"{name} returned a model without a loss; give model.compile(loss=…)") from None
            if isinstance(error, UserError) or in_own_code(error):
                raise
            raise UserError(mismatch(name, model, dataset, error)) from None
    if asked:
        log.warning(f"{name}: jit_compile=True has no effect: ranks exchange what XLA cannot compile")
    if not model.trainable_variables and not has_own_train_step(model):  # which may make them
        raise UserError(f"{name} returned a model with nothing to train: all its variables are frozen")
    if precision is not None:
        _check_precision(model, precision, name)
    if (cycle := estimator.config.learning_rate_cycle) is not None:
        if has_own_train_step(model):
            raise UserError(
                f"run.learning_rate_cycle: {name} returned a model with a train_step of its own, which holds on to its "
                "optimizers; give them a schedule, such as CosineDecayRestarts, and leave `learning_rate_cycle` out"
            )
        model.optimizer = with_cycle(model.optimizer, cycle, name)
    optimizer, scaling = model.optimizer, keras.optimizers.LossScaleOptimizer
    if has_own_train_step(model):  # which holds on to its optimizers
        return model
    if precision == "float16" and not isinstance(optimizer, scaling) and optimizer.loss_scale_factor is None:
        model.optimizer = scaling(optimizer)
    return model


def _called(estimator: Estimator, name: str) -> keras.Model:
    return _checked(call(estimator.model_fn, dict(estimator.params), PARAMS), name)


def _refuse_parts(error: Exception, estimator: Estimator, dataset: tf.data.Dataset, name: str) -> None:
    """UserError where `error` is raised for the sake of run.mesh: one rank can build the model. Local."""
    from hpc_train.model.one_rank import refuse_parts
    from hpc_train.model.unallocated import traced

    def build() -> keras.Model:
        model = _called(estimator, name)
        traced(model, dataset, name)
        return model

    refuse_parts(error, name, build)


def _checked(model: object, name: str) -> keras.Model:
    """What `model_fn` returned, if it can be trained; UserError if not."""
    if not isinstance(model, keras.Model):
        raise UserError(f"{name} returned {type(model).__name__}; it must return a compiled keras.Model")
    if not model.compiled or (model.optimizer is None and not has_own_train_step(model)):
        raise UserError(f"{name} returned an uncompiled model; call model.compile(optimizer=…, loss=…) in it")
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    if words := [weight for weight in tf.nest.flatten(weights) if isinstance(weight, str)]:
        raise UserError(
            f"{name}: model.compile got {', '.join(map(repr, words))} as loss_weights, its third argument; name the "
            f"argument: metrics={words!r}"
        )
    for method in ("make_train_function", "make_test_function"):
        if getattr(getattr(model, method), "__func__", None) is not getattr(keras.Model, method):
            raise UserError(
                f"{name} returned a {type(model).__name__} with a {method} of its own, which is for Keras's fit and "
                "would not be called; override train_step and test_step instead"
            )
    return model


_LACKING = re.compile(r"does not have a `call\(\)` method|No loss to compute")
"""What Keras's test_step says of a model that has no `call`, or no loss."""


@contextmanager
def _policy(precision: Literal["bfloat16", "float16"] | None) -> Iterator[None]:
    """Keras's policy for layers that are made inside; None leaves it as it is."""
    if precision is None:
        yield
        return
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def _check_precision(model: keras.Model, precision: str, name: str) -> None:
    """UserError where no layer computes in `precision`."""
    layers = [layer for layer in model._flatten_layers() if layer.variables and not layer._layers]
    found = sorted({layer.compute_dtype for layer in layers})
    if layers and precision not in found:
        raise UserError(
            f"run.mixed_precision is {precision}, but the layers of {name} compute in {', '.join(found)}; leave out "
            "the dtype or policy that it gives them, make them in model_fn itself, or leave mixed_precision out"
        )


def try_out(model: keras.Model, dataset: tf.data.Dataset) -> bool:
    """Evaluates one batch like those of `dataset`, which builds model and metrics, or shows what does not fit. Local.

    Returns whether there is something to evaluate: not so of a model with a train_step of its own that has neither a
    test_step nor what Keras's test_step takes, a `call` and a loss.

    The batch is one of zeros where the shapes are known, else the first of the dataset; see model.batch.example. States
    of stateful layers are left as they were.

    Raises:
        UserError: As the model's own code has raised it. Whatever else the model raises.
    """
    own_alone = has_own_train_step(model) and not has_own_test_step(model)
    if own_alone and type(model).call is keras.Model.call:  # Keras would warn of what it cannot build
        return False
    with from_zero(model):
        try:
            model.test_step(example(dataset, model))
        except UserError as error:
            raise as_raised(error) from None
        except (NotImplementedError, ValueError) as error:
            if not own_alone or not _LACKING.search(str(error)):
                raise
            return False
    model.reset_metrics()
    return True


def _try_loss(model: keras.Model, dataset: tf.data.Dataset, name: str) -> None:
    """As try_out. UserError where the loss is no single number, or depends on no trainable variable."""
    with _losses_noted(model) as losses, tf.GradientTape() as tape:
        try_out(model, dataset)
    if not losses or has_own_train_step(model):
        return
    loss, variables = losses[0], model.trainable_variables
    if np.ndim(loss) != 0:
        own = type(model).compute_loss is not keras.Model.compute_loss
        what = f"compute_loss of {type(model).__name__}" if own else "the loss"
        raise UserError(
            f"{name}: {what} is an array {list(np.shape(loss))} and no single number; Keras would add up its gradients "
            "and report its mean; let it be one, the mean or the sum over the rows (reduction='sum_over_batch_size' or "
            "'sum')"
        )
    if not tf.is_tensor(loss) or not variables:
        return
    with suppress(LookupError):  # of an operation without a gradient, which training may not call
        if all(gradient is None for gradient in tape.gradient(loss, variables)):
            with left_alone(model), tf.GradientTape() as training:
                loss = loss_of(model, example(dataset, model), True)
            if all(gradient is None for gradient in training.gradient(loss, variables)):
                raise UserError(
                    f"{name}: the loss has no gradient: it depends on no trainable variable, or only through what "
                    "cannot be differentiated (argmax, rounding, comparisons, numpy)"
                )


@contextmanager
def _losses_noted(model: keras.Model) -> Iterator[list[Any]]:
    """A context in which what compute_loss returns is noted in the list."""
    found: list[Any] = []
    own, compute_loss = vars(model).get("compute_loss"), model.compute_loss

    @wraps(compute_loss)
    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(compute_loss(*args, **kwargs))
        return found[-1]

    vars(model)["compute_loss"] = noted
    try:
        yield found
    finally:
        if own is None:
            del vars(model)["compute_loss"]
        else:
            vars(model)["compute_loss"] = own


def sparse_classes(model: keras.Model, labels: list[str]) -> dict[str, tuple[int, int | None]]:
    """Of the labels that Keras's sparse cross-entropy compares with an output: classes, and the label it leaves out.

    Known for models with one output, and with outputs and losses by name; and for those that have `label_classes`.
    """
    if type(model).compute_loss is not keras.Model.compute_loss:
        classes = getattr(model, "label_classes", None)
        return {labels[0]: (classes, None)} if classes is not None and len(labels) == 1 else {}
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

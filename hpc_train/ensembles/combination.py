"""The members of an ensemble as one Keras model: what they give, its mean and its spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_train.config.ensemble import MEAN, MEMBERS, SPREAD
from hpc_train.ensembles.task import Task, task_of
from hpc_train.errors import UserError
from hpc_train.export.from_checkpoint import RestoredModel
from hpc_train.export.signature import Signature, default_serving
from hpc_train.lazy import keras, tf
from hpc_train.model.own_steps import has_own_predict_step

Outputs = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Combination:
    """Several models as one.

    Attributes:
        model: It takes what a member takes, and gives a dict: `mean` and `spread` `[rows, ...]` (standard deviation) of
            the members' probabilities or values, and `members` `[rows, members, ...]`. Of stock layers and operations
            around those of the members.
    """

    model: keras.Model
    signature: Signature
    task: Task

    def outputs(self) -> Outputs:
        """A function of what a batch has as features; a dict of tensors."""
        return outputs_of(self.model, self.signature)


def outputs_of(model: keras.Model, signature: Signature) -> Outputs:
    """A function of what a batch has as features, that calls `model` as its export does; a dict of tensors."""
    serve, structure = default_serving(model, signature), signature.structure
    names = tf.nest.flatten(structure)

    def call(features: Any) -> dict[str, Any]:
        if isinstance(structure, dict):
            features = {name: features[name] for name in structure}
        found: dict[str, Any] = serve(dict(zip(names, tf.nest.flatten(features), strict=True)))
        return found

    return call


def combined(members: Sequence[RestoredModel]) -> Combination:
    """One model of the members', which become parts of it.

    Raises:
        UserError: They do not take and give the same, have several outputs, or their loss does not tell what they give.
    """
    first = members[0].signature
    inputs = {
        name: keras.Input(spec.shape[1:], dtype=spec.dtype.name, name=name) for name, spec in first.inputs.items()
    }
    taken = tf.nest.map_structure(lambda name: inputs[name], first.structure)
    given, tasks = [], []
    for number, member in enumerate(members):
        where, model = f"{member.job.name}, member {number}", member.model
        if has_own_predict_step(model):
            raise UserError(
                f"{where}: has a predict_step of its own, which an ensemble would not call; let `call` do it"
            )
        if member.signature != first:
            raise UserError(f"{where}: takes {_words(member.signature)}, and member 0 {_words(first)}")
        tasks.append(task_of(model, where))
        model.name = f"member_{number}"
        output = model(taken, training=False)
        if isinstance(output, dict | list | tuple):
            raise UserError(f"{where}: gives several outputs; an ensemble is one of models with one output")
        given.append(tasks[-1].outputs(output))
        if given[-1].shape != given[0].shape or tasks[-1].kind != tasks[0].kind:
            raise UserError(
                f"{where}: gives {tasks[-1].kind} {list(given[-1].shape)}, and member 0 {tasks[0].kind} "
                f"{list(given[0].shape)}; members give the same"
            )
    each = keras.ops.stack(given, axis=1)
    outputs = {MEAN: keras.ops.mean(each, axis=1), SPREAD: keras.ops.std(each, axis=1), MEMBERS: each}
    model = keras.Model(taken, outputs, name="ensemble")
    for part in (model, *(member.model for member in members)):  # nothing of it is trained any more
        part.optimizer, part.compiled = None, False
    return Combination(model, first, tasks[0])


def _words(signature: Signature) -> str:
    return ", ".join(f"{name} {spec.dtype.name} {spec.shape}" for name, spec in signature.inputs.items())

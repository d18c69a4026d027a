"""What the user should know of how a model is trained here, where Keras alone would do it otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpc_train.lazy import keras
from hpc_train.model.layer_states import stateful_variables
from hpc_train.model.own_steps import Updates, has_own_train_step


@contextmanager
def xla_asked_for() -> Iterator[list[bool]]:
    """A context in which models are compiled; the list is [True] where one asks for XLA itself (jit_compile=True)."""
    trainer = keras.src.trainers.trainer.Trainer
    compile_ = trainer.compile
    asked: list[bool] = []

    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        compile_(self, *args, **kwargs)
        if kwargs.get("jit_compile") is True and not asked:
            asked.append(True)

    trainer.compile = compile
    try:
        yield asked
    finally:
        trainer.compile = compile_


def notes_on(
    model: keras.Model, updates: Updates, ranks: int, asynchronous: bool, precision: str | None, name: str
) -> list[str]:
    """Lines to be logged, once.

    Args:
        ranks: How many train. precision: run.mixed_precision. name: what to call the model.
    """
    notes = []
    if model.run_eagerly:
        notes.append(f"{name}: compiled with run_eagerly: forward and backward pass run as Python, and slower")
    if int(model.steps_per_execution) > 1:
        notes.append(
            f"{name}: steps_per_execution={int(model.steps_per_execution)} has no effect: each step is executed alone"
        )
    if has_own_train_step(model):
        kind = type(model).__name__
        if ranks > 1:
            notes.append(
                f"{name}: train_step of {kind} is called on each of {ranks} ranks with its own rows, and gradients are "
                "averaged over ranks before each update; a loss that compares rows with each other compares a rank's "
                "own, unless they are brought together by ht.all_gather"
            )
        scaling = [o for o, _ in updates.optimizers if isinstance(o, keras.optimizers.LossScaleOptimizer)]
        if precision == "float16" and not scaling:
            notes.append(
                f"{name}: run.mixed_precision: float16: train_step of {kind} has no loss scale, which its gradients "
                "need; wrap its optimizers in keras.optimizers.LossScaleOptimizer, or take bfloat16"
            )
        for (optimizer, _), times in zip(updates.optimizers, updates.times, strict=True):
            if times > 1:
                notes.append(f"{name}: train_step of {kind} applies {optimizer.name} {times} times in a step")
    if asynchronous and stateful_variables(model):
        notes.append(
            f"{name}: stateful layers keep their states on each worker; an asynchronous job does not save them, and "
            "begins with zeros when it is started again"
        )
    return notes

"""Hooks and saving listeners: as the user gives them, and all those of one rank called in order. Local."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_train.arguments import shown
from hpc_train.callbacks.hook import LISTENER_METHODS, METHODS, Hook, HookContext, SavingListener
from hpc_train.config.specs import EvalSpec, TrainSpec
from hpc_train.errors import JobEndedError, UserError

ALLOWED_HOOKS = "an ht.Hook, an object with one of its methods, or a keras.callbacks.Callback"
ALLOWED_LISTENERS = "an ht.SavingListener, or an object with one of its methods"

Call = tuple[str, Callable[..., Any]]


def is_keras_callback(value: Any) -> bool:
    """Whether it is one, found without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.callbacks.Callback)


def resolve_hooks(given: Sequence[Any], load: Callable[[str], Callable[..., Any]], where: str = "hooks") -> list[Any]:
    """The hooks that `given` names or holds.

    Args:
        given: Hooks, Keras callbacks, or names as in a job file: `file.py:function`, which is called without
            arguments and returns a hook or several.
        load: Finds the function of a name.
        where: What the user gave them as.

    Raises:
        UserError: Something else is among them.
    """
    return _resolved(given, load, where, METHODS, ALLOWED_HOOKS, is_keras_callback)


def resolve_listeners(given: Sequence[Any], load: Callable[[str], Callable[..., Any]]) -> list[Any]:
    """The saving listeners that `given` names or holds; otherwise as resolve_hooks."""
    return _resolved(given, load, "saving_listeners", LISTENER_METHODS, ALLOWED_LISTENERS, lambda value: False)


def _resolved(
    given: Sequence[Any],
    load: Callable[[str], Callable[..., Any]],
    where: str,
    methods: Sequence[str],
    allowed: str,
    also: Callable[[Any], bool],
) -> list[Any]:
    found: list[Any] = []
    for item in given:
        made = load(item)() if isinstance(item, str) else item
        source = f"{where}: {item}() returned" if isinstance(item, str) else f"{where}:"
        for one in made if isinstance(made, list | tuple) else [made]:
            if isinstance(one, type):
                raise UserError(f"{source} the class {one.__name__}; give an object: {one.__name__}()")
            if not also(one) and not any(callable(getattr(one, method, None)) for method in methods):
                raise UserError(f"{source} {shown(one)}, which is not allowed; allowed: {allowed}")
            found.append(one)
    return found


def check_hooks(train_spec: TrainSpec, eval_specs: Sequence[EvalSpec]) -> None:
    """Refuses what is no hook and no saving listener, before anything is started.

    Raises:
        UserError: Something else, or the name of a function, is among them.
    """

    def refuse_name(name: str) -> Any:
        raise UserError(f"hooks: {name!r}: names of functions are for job files; give the object itself")

    resolve_hooks(train_spec.hooks, refuse_name, "TrainSpec: hooks")
    resolve_listeners(train_spec.saving_listeners, refuse_name)
    for spec in eval_specs:
        for hook in resolve_hooks(spec.hooks, refuse_name, "EvalSpec: hooks"):
            EvaluationHook(hook, spec.name)


class EvaluationHook(Hook):
    """A hook of the EvalSpec called `name`: called around that set's evaluations alone, at the begin and the end."""

    def __init__(self, hook: Any, name: str | None) -> None:
        if is_keras_callback(hook):
            raise UserError(f"EvalSpec.hooks: {type(hook).__name__} is a Keras callback; give it to TrainSpec.hooks")
        self.hook, self.name = hook, name
        self.chief_only = bool(getattr(hook, "chief_only", False))

    def begin(self, context: HookContext) -> None:
        self._call("begin", replace(context, is_chief=context.rank == 0))

    def before_evaluate(self, step: int, name: str | None) -> None:
        if name == self.name:
            self._call("before_evaluate", step, name)

    def before_evaluation_batch(self, name: str | None, batch: int) -> None:
        if name == self.name:
            self._call("before_evaluation_batch", name, batch)

    def after_evaluation_batch(self, name: str | None, batch: int) -> None:
        if name == self.name:
            self._call("after_evaluation_batch", name, batch)

    def after_evaluate(self, step: int, name: str | None, metrics: Mapping[str, float]) -> None:
        if name == self.name:
            self._call("after_evaluate", step, name, metrics)

    def end(self, step: int) -> None:
        self._call("end", step)

    def _call(self, method: str, *arguments: Any) -> None:
        if callable(call := getattr(self.hook, method, None)):
            call(*arguments)


class Hooks:
    """All hooks of one rank, called in order; the methods are those of Hook. Local.

    An exception of a hook becomes a RuntimeError that names the hook, method and step; UserError and JobEndedError
    pass.

    Args:
        hooks: As resolve_hooks gives them, Keras callbacks as a KerasCallbacks (see callbacks.keras.adapted).
        context: What they are to know, but for request_stop; is_chief: whether this is the first rank that trains.

    Attributes:
        stop_requested: The first reason that a hook of this rank gave for stopping; None: go on.
        needing_state: What is called before or after each step and needs the model's state then (see Hook); None: none.
    """

    def __init__(self, hooks: Iterable[Any], context: HookContext) -> None:
        self.stop_requested: str | None = None
        self._context = replace(context, request_stop=self._request_stop)

        def is_here(hook: Any) -> bool:
            here = self._context.rank == 0 if isinstance(hook, EvaluationHook) else self._context.is_chief
            return here or not getattr(hook, "chief_only", False)

        mine = [hook for hook in hooks if is_here(hook)]
        self._calls = {method: _calls(mine, method) for method in METHODS}
        by_step = [hook for hook in mine if getattr(hook, "needs_state", True)]
        called = [name for method in ("before_step", "after_step") for name, _ in _calls(by_step, method)]
        self.needing_state: str | None = called[0] if called else None
        self._calls["interrupted"] = [
            call for hook in mine for call in _calls([hook], "interrupted") or _calls([hook], "end")
        ]

    def _request_stop(self, reason: str) -> None:
        if self.stop_requested is None:
            self.stop_requested = str(reason)

    def begin(self) -> None:
        _run(self._calls["begin"], self._context.first_step, self._context)

    def before_step(self, step: int) -> None:
        """Afterwards `stop_requested` is to be read."""
        _run(self._calls["before_step"], step, step)

    def after_step(self, step: int, loss: float) -> None:
        _run(self._calls["after_step"], step, step, loss)

    def after_checkpoint(self, step: int, path: Path) -> None:
        _run(self._calls["after_checkpoint"], step, step, path)

    def before_evaluate(self, step: int, name: str | None) -> None:
        _run(self._calls["before_evaluate"], step, step, name)

    def before_evaluation_batch(self, step: int, name: str | None, batch: int) -> None:
        _run(self._calls["before_evaluation_batch"], step, name, batch)

    def after_evaluation_batch(self, step: int, name: str | None, batch: int) -> None:
        _run(self._calls["after_evaluation_batch"], step, name, batch)

    def after_evaluate(self, step: int, name: str | None, metrics: Mapping[str, float]) -> None:
        """To be called on all ranks between the same two steps, with the same metrics."""
        _run(self._calls["after_evaluate"], step, step, name, metrics)

    def end(self, step: int) -> None:
        """To be called before the last checkpoint is taken."""
        _run(self._calls["end"], step, step)

    def interrupted(self, step: int) -> None:
        """For a run that a signal stops; to be called after its checkpoint has been taken."""
        _run(self._calls["interrupted"], step, step)


class SavingListeners:
    """All saving listeners, called in order; methods as in SavingListener, errors as with Hooks. Local."""

    def __init__(self, listeners: Iterable[Any]) -> None:
        listeners = list(listeners)
        self._before, self._after = _calls(listeners, "before_save"), _calls(listeners, "after_save")

    def before_save(self, step: int) -> None:
        _run(self._before, step, step, kind="saving listener")

    def after_save(self, step: int, path: Path) -> None:
        _run(self._after, step, step, path, kind="saving listener")


def _calls(hooks: Iterable[Any], method: str) -> list[Call]:
    """The calls of `method` that do something."""
    found = []
    for hook in hooks:
        call = getattr(hook, method, None)
        idle = (getattr(Hook, method, None), getattr(SavingListener, method, None))
        bound = getattr(call, "__func__", None)
        if callable(call) and (bound is None or bound not in idle):
            inner = hook.hook if isinstance(hook, EvaluationHook) else hook
            found.append((f"{type(inner).__name__}.{method}", call))
    return found


def _run(calls: list[Call], at: int, *arguments: Any, kind: str = "hook") -> None:
    for name, call in calls:
        try:
            call(*arguments)
        except (UserError, JobEndedError):
            raise
        except Exception as error:
            raise RuntimeError(f"{kind} {name} failed at step {at}: {error}") from error

"""Functions of the user: with which arguments they can be called, looked at before they are. Pure.

A function of one argument at most gets it where it has a place for it: a parameter without a default, `*args`, or one
with the default None, or with a name or an annotation that says so. So `lambda dataset=dataset: dataset` keeps its own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from hpc_train.arguments import shown
from hpc_train.errors import UserError

ALLOWED_INPUTS = (
    "an ht.HDF5Input, or a function without arguments or of one, an ht.InputContext, that returns a tf.data.Dataset"
)
ALLOWED_MODELS = "a function without arguments or of one, params (a dict), that returns a compiled keras.Model"

CONTEXT, PARAMS = ("context", "input_context"), ("params",)
"""What the one argument of an input_fn, and of a model_fn, is called where it has a default."""
MAP_FN = (("features",), ("features", "label"))
SERVING_FN = (("model",),)
COMPARE_FN = (("best_metrics", "current_metrics"),)
"""The arguments that these functions may have."""

_INPUTS_OF_ESTIMATOR = {"mode", "params", "config"}
_MODELS_OF_ESTIMATOR = {"features", "labels", "mode", "config"}
"""What Estimator gave them besides, by name."""


def check_input(function: Any) -> None:
    """ValueError where `function`, an input that is no HDF5Input, cannot be called as an input_fn."""
    if not callable(function):
        way = "; give a function that returns it, such as lambda: dataset" if hasattr(function, "element_spec") else ""
        raise ValueError(f"{shown(function)} is not allowed; allowed: {ALLOWED_INPUTS}{way}")
    way = "functools.partial or a lambda can give it what Estimator gave it"
    _refuse_others(function, CONTEXT, ALLOWED_INPUTS, _INPUTS_OF_ESTIMATOR, way)


def check_model(function: Any, params: Mapping[str, Any]) -> None:
    """ValueError where `function` cannot be called as a model_fn, or would leave `params` unused."""
    keras = sys.modules.get("keras")  # without it, there is no model
    is_model = keras is not None and isinstance(function, keras.Model)
    if not callable(function) or is_model:
        way = "; give the function that makes and compiles the model" if is_model else ""
        raise ValueError(f"{shown(function)} is not allowed; allowed: {ALLOWED_MODELS}{way}")
    way = "docs/estimator.md shows how a model_fn of Estimator is written here"
    _refuse_others(function, PARAMS, ALLOWED_MODELS, _MODELS_OF_ESTIMATOR, way)
    if params and not takes_one(function, PARAMS):
        raise ValueError(f"{_called(function)} has no argument for params, which are given; add one, or leave them out")


def call(function: Callable[..., Any], argument: Any, names: Collection[str]) -> Any:
    """What `function` returns, with its one `argument`, known by `names`, where it has a place for it."""
    return function(argument) if takes_one(function, names) else function()


def check_arguments(function: Callable[..., Any], *allowed: tuple[str, ...]) -> None:
    """ValueError where `function` can be called with none of the `allowed` arguments, by position; `seed` by name."""
    signature = _signature(function)
    seed = {"seed": None} if signature is not None and "seed" in signature.parameters else {}
    if not any(_binds(signature, names, seed) for names in allowed):
        ways = " or ".join(f"({', '.join(names)})" for names in allowed)
        raise ValueError(f"{_called(function)} is not allowed; allowed: a function of {ways}")


def checked(where: str, function: Callable[..., Any], allowed: tuple[tuple[str, ...], ...]) -> Callable[..., Any]:
    """`function`, which `where` names in a job file; UserError where its arguments are not allowed."""
    try:
        check_arguments(function, *allowed)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return function


def takes_one(function: Callable[..., Any], names: Collection[str]) -> bool:
    """Whether `function` is to be called with its one argument, which is known by `names`."""
    signature = _signature(function)
    if signature is None:
        return True
    for p in signature.parameters.values():
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            return p.default is p.empty or p.default is None or p.name in names or _is_context(p.annotation)
        if p.kind is p.VAR_POSITIONAL:
            return True
    return False


def _is_context(annotation: Any) -> bool:
    return "InputContext" in (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))


def _refuse_others(
    function: Callable[..., Any], names: tuple[str, ...], allowed: str, of_estimator: Collection[str], way: str
) -> None:
    """ValueError where `function` needs other arguments than the one that is known by `names`."""
    signature = _signature(function)
    if signature is None:
        return
    needed = {p.name for p in signature.parameters.values() if p.default is p.empty}
    foreign = needed & set(of_estimator)
    if foreign or not _binds(signature, names[:1] if takes_one(function, names) else (), {}):
        hint = f"; {way}" if foreign else ""
        raise ValueError(f"{_called(function)} is not allowed; allowed: {allowed}{hint}")


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """None: a built-in that does not say."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _binds(signature: inspect.Signature | None, args: Collection[str], kwargs: Mapping[str, Any]) -> bool:
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _called(function: Callable[..., Any]) -> str:
    """`function` with its arguments, as it is to be shown."""
    inner = getattr(function, "func", function)  # of a functools.partial
    name, signature = getattr(inner, "__name__", type(inner).__name__), _signature(function)
    if signature is None:
        return f"{name}()"
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in signature.parameters.values()]
    return f"{name}{signature.replace(parameters=bare, return_annotation=signature.empty)}"


def name_of(function: Any) -> str:
    """What another process imports a function, or the class of an object, by: `module:name`, or `file.py:name`."""
    if isinstance(function, str):
        return function
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{_place_of(kind.__module__)}:{kind.__qualname__}"


def _place_of(module: str) -> str:
    """Where another process finds a module: the program itself, and what lies beside it, by their files."""
    program, found = sys.modules.get("__main__"), sys.modules.get(module)
    if found is program and (spec := getattr(program, "__spec__", None)) is not None:  # python -m package.module
        return str(spec.name)
    file, main = (getattr(each, "__file__", None) for each in (found, program))
    if not file or not main or not file.endswith(".py"):
        return module
    path = Path(file).absolute()
    is_beside = "." not in module and path.parent == Path(main).absolute().parent
    return str(path) if found is program or is_beside else module

"""The code that a job names: it is there, is Python, and is called with arguments that it has. Runs none of it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.config.functions import COMPARE_FN, MAP_FN, SERVING_FN, check_model, checked
from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig
from hpc_train.config.references import names_of
from hpc_train.errors import UserError
from hpc_train.files import read_bytes
from hpc_train.jobs.problems import Problems

MAX_CODE_BYTES = 16 << 20
"""A larger file is no Python that anybody has written."""
ARGUMENTS = {"map_fn": MAP_FN, "serving_fn": SERVING_FN, "compare_fn": COMPARE_FN}


def check_code(job: JobConfig | ProgramConfig, folder: Path) -> None:
    """UserError where the code that a job names is not there, is no Python, or has other arguments."""
    if isinstance(job, ProgramConfig):
        _check_module("module", job.module, folder)
        return
    problems = Problems()
    for location, kind, name in names_of(job):
        if kind == "function":
            key = next(part for part in reversed(location) if isinstance(part, str))
            place, _, function = name.rpartition(":")
            with problems.gathered():
                if place.endswith(".py"):
                    _check_function(key, Path(place), function, job.params)
                else:
                    _check_module(key, place, folder)
    problems.refuse()


def _check_function(key: str, path: Path, function: str, params: Mapping[str, Any]) -> None:
    try:
        tree = ast.parse(read_bytes(path, MAX_CODE_BYTES, follow=True), str(path))
    except OSError as error:
        raise UserError(f"{key}: {path}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{key}: {path}{line}: not Python: {error.args[0]}") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{key}: {path}: not Python: it is nested too deeply") from None
    if not any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tree.body):
        names = set(_defined(tree.body))
        if function not in names:
            known = ", ".join(sorted(name for name in names if not name.startswith("_"))) or "none"
            raise UserError(f"{key}: {path} has no function {function}; what it defines: {known}")
    if (stand_in := _stand_in(tree, function)) is None:
        return
    where = f"{key}: {path}:{function}"
    if key in ARGUMENTS:
        checked(where, stand_in, ARGUMENTS[key])
    elif key == "model":
        try:
            check_model(stand_in, params)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None


def _stand_in(tree: ast.Module, function: str) -> Callable[..., Any] | None:
    """A function with the name and the arguments of the one in `tree`; None where running alone would tell them."""
    bound = [node for node in tree.body if function in _defined([node])]
    if len(bound) != 1 or not isinstance(node := bound[0], ast.FunctionDef) or node.decorator_list:
        return None
    given, empty = node.args, inspect.Parameter.empty
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[empty] * (len(positional) - len(given.defaults)), *map(_default, given.defaults)]
    only = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        _parameter(arg, only[number >= len(given.posonlyargs)], default)
        for number, (arg, default) in enumerate(zip(positional, defaults, strict=True))
    ]
    parameters += [_parameter(given.vararg, inspect.Parameter.VAR_POSITIONAL)] if given.vararg else []
    for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        parameters.append(_parameter(arg, inspect.Parameter.KEYWORD_ONLY, empty if value is None else _default(value)))
    parameters += [_parameter(given.kwarg, inspect.Parameter.VAR_KEYWORD)] if given.kwarg else []

    def stand_in() -> None: ...

    stand_in.__name__ = function
    stand_in.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return stand_in


def _parameter(arg: ast.arg, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    annotation = ast.unparse(arg.annotation) if arg.annotation is not None else inspect.Parameter.empty
    return inspect.Parameter(arg.arg, kind, default=default, annotation=annotation)


def _default(value: ast.expr) -> object:
    """None, or something else."""
    return value.value if isinstance(value, ast.Constant) else ...


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements give at the top level of a module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for part in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _defined(handler.body)


def _check_module(key: str, module: str, folder: Path) -> None:
    first, path = module.partition(".")[0], folder.joinpath(*module.split("."))
    if (folder / first).is_dir() or (folder / f"{first}.py").is_file():
        of_package = path / ("__main__.py" if key == "module" else "__init__.py")
        places = [path.with_suffix(".py"), of_package]
        if not any(place.is_file() for place in places):
            raise UserError(f"{key}: there is no {module} in {folder}: neither {places[0]} nor {places[1]}")
    elif not _is_installed(first):
        raise UserError(f"{key}: there is no module {module}: neither in {folder} nor among the installed packages")


def _is_installed(module: str) -> bool:
    with suppress(ValueError):  # __main__
        return importlib.util.find_spec(module) is not None
    return False

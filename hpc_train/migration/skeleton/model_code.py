"""The code of a model function: a program's statements, made to read hyper-parameters from `params`. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hpc_train.migration.counterparts.row import Verdict
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.replacement import Translator, arguments_of
from hpc_train.migration.skeleton.features import INPUTS, Features
from hpc_train.migration.source import Source
from hpc_train.migration.values import UNKNOWN

MODULES = {"ht": "hpc_train", "keras": "keras", "tf": "tensorflow"}
"""What model.py calls them."""
_OF_NO_EFFECT = frozenset((
    "global_step", "is_training", "outputs_collections", "reuse", "training", "use_locking",
    "variables_collections",
))  # fmt: skip
"""Arguments that there are no more, and that model.py does without."""
_DECIDED_BY_KERAS = ("experimental_run_tf_function", "training")


@dataclass(frozen=True)
class ModelCode:
    """What model.py is made of.

    Attributes:
        statements: Of the function; they assign `model`.
        params: Hyper-parameters that it reads, with their defaults; None where the program does not show one.
        features: What the model takes, by name; empty: one tensor.
        remarks: What is left to be done.
    """

    statements: tuple[ast.stmt, ...]
    params: dict[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class ModelTranslator(Translator):
    """What stands in model.py: flags are read from params, and what Keras decides by itself is left out.

    Attributes:
        remarks: What is left to be done of what was translated: arguments and functions without a counterpart.
    """

    def __init__(self, source: Source, features: Features | None = None) -> None:
        super().__init__(source.names, source.values.flags, in_model=True)
        self._source, self._features = source, features
        self.remarks: dict[str, None] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802
        """A call; what joins feature columns becomes the model's features."""
        if self._features is not None and self._source.names.called(node) in INPUTS:
            return ast.parse(self._features.joined(), mode="eval").body
        if self._features is None and self._source.names.called(node) == "tf.nn.dropout" and len(node.args) > 1:
            node.keywords.append(ast.keyword("rate", node.args.pop(1)))  # as in TensorFlow 2, which Keras models are of
        self._remark(node)
        found = super().visit_Call(node)
        if isinstance(found, ast.Call):
            found.keywords = [keyword for keyword in found.keywords if keyword.arg not in _DECIDED_BY_KERAS]
        return found

    def _remark(self, call: ast.Call) -> None:
        name = self._source.names.called(call)
        row = row_of(name, in_model=True)
        if row is None:
            return
        if row.verdict is Verdict.MISSING:
            self.remarks[f"{name}: {row.why}"] = None
        for gone in arguments_of(call, row).gone:
            if gone not in _OF_NO_EFFECT:
                self.remarks[f"{gone} of {name}: {row.gone[gone]}"] = None


def model_code(
    source: Source,
    statements: Iterable[ast.stmt],
    free: set[str],
    functions: Iterable[ast.FunctionDef] = (),
    features: Features | None = None,
    remarks: Iterable[str] = (),
) -> ModelCode:
    """The code of `statements`: arguments of the functions around them are read from params.

    Args:
        free: Names that they read and do not bind.
        functions: Those that they are in.
    """
    arguments = {arg.arg: default for function in functions for arg, default in _with_defaults(function)}
    body, left = list(statements), list(remarks)
    for name in sorted(free - {"params", *MODULES}):
        if name in arguments:
            body.insert(0, ast.parse(f"{name} = params[{name!r}]").body[0])
        else:
            left.append(f"define {name}, which the program has from elsewhere")
    params: dict[str, Any] = {}
    for name in _params_read(body):
        flag = source.values.flags.get(name)
        params[name] = _or_none(flag.default if flag is not None else source.values.of(arguments.get(name)))
    names = features.names if features is not None else ()
    return ModelCode(tuple(body), params, names, (*left, *(features.remarks if features is not None else ())))


def _params_read(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """The names of `params["name"]`."""
    for node in (inner for statement in statements for inner in ast.walk(statement)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "params":
            name = getattr(node.slice, "value", None)
            if isinstance(name, str):
                yield name


def _with_defaults(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    needed = len(arguments) - len(function.args.defaults)
    yield from zip(arguments, [*([None] * needed), *function.args.defaults], strict=True)
    yield from zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)


def _or_none(value: Any) -> Any:
    return None if value is UNKNOWN else value

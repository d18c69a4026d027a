"""model.py: the function that makes a program's model, taken from the statements that make it there. Pure."""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Callable, Sequence

from hpc_train.migration.layout import laid_out
from hpc_train.migration.skeleton.canned_model import canned_model
from hpc_train.migration.skeleton.estimator_model import model_of_function
from hpc_train.migration.skeleton.keras_model import compiled_model, model_of_loop
from hpc_train.migration.skeleton.model_code import MODULES, ModelCode
from hpc_train.migration.skeleton.slice import loaded
from hpc_train.migration.source import Source
from hpc_train.text import visible

MODEL_FILE, FUNCTION = "model.py", "build_model"
_WIDTH = 110
_WAYS: tuple[Callable[[Source], ModelCode | None], ...] = (
    compiled_model,
    model_of_function,
    canned_model,
    model_of_loop,
)
_STUB = """
inputs = keras.Input((1,), name="x")
model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.Adam(0.001), loss="mse")
"""


def model_in(sources: Sequence[Source]) -> ModelCode:
    """The model of the first program that shows one; a stub where none does, or no function can make it."""
    for way in _WAYS:
        for source in sources:
            if (found := way(source)) is not None:
                return found if (why := _problem(found)) is None else _stub(f"no function can make the model: {why}")
    return _stub("no model was found in the program")


def _stub(why: str) -> ModelCode:
    return ModelCode(tuple(ast.parse(_STUB).body), remarks=(f"{why}; write it here",))


def _problem(model: ModelCode) -> str | None:
    """Why the model's code cannot be in a function, as cells of notebooks may await; or None."""
    try:
        with warnings.catch_warnings():  # those of the user's own code are told where it runs
            warnings.simplefilter("ignore")
            compile(model_file(model, ""), MODEL_FILE, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.msg
    return None


def model_file(model: ModelCode, origin: str) -> str:
    """The text of model.py.

    Args:
        origin: The name of the program, for the first line.
    """
    used = {name for statement in model.statements for name in loaded(statement)}
    first = visible(origin).replace("\\", "/").replace('"', "'")
    head = [f'"""The model of {first}, for `hpc-train train job.yaml`; TODO marks what is left to be done."""']
    if "ht" in used:
        head += ["", "import hpc_train as ht"]
    rows = [_import(name, module) for name, module in MODULES.items() if name in used and name != "ht"]
    rows.append("")
    for remark in model.remarks:
        rows += textwrap.wrap(f"# TODO: {visible(remark)}", _WIDTH, subsequent_indent="#   ")
    for statement in model.statements:
        rows += laid_out(statement, _WIDTH)
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            rows.append("")
    rows.append("return model")
    body = [f"    {row}".rstrip() for row in rows]
    return "\n".join([*head, "", "", f"def {FUNCTION}(params):", *body, ""])


def _import(name: str, module: str) -> str:
    return f"import {module}" if name == module else f"import {module} as {name}"

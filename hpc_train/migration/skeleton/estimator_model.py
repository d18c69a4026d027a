"""The model of a model function of Estimator: logits, loss, optimizer and metrics as a compiled model. Pure."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from hpc_train.migration.counterparts.row import Counterpart
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.skeleton.features import features_of
from hpc_train.migration.skeleton.model_code import MODULES, ModelCode, ModelTranslator, model_code
from hpc_train.migration.skeleton.slice import loaded, slice_of, statements_before
from hpc_train.migration.source import Source

_OPTIMIZER = "keras.optimizers.Adam(0.001)"
_OUTPUTS = ("logits", "predictions", "outputs", "output", "net", "y_pred")
"""What programs call what a network gives, the likeliest first."""


def model_of_function(source: Source) -> ModelCode | None:
    """The first function with features and labels that returns an EstimatorSpec; None: there is none."""
    functions = [node for node in ast.walk(source.program.tree) if isinstance(node, ast.FunctionDef)]
    function = next((each for each in functions if _is_model_function(each, source)), None)
    if function is None:
        return None
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    rows = [(call, row) for call in calls if (row := row_of(source.names.called(call), True)) is not None]
    features = features_of(source, function)
    translator = ModelTranslator(source, features)
    logits = _logits_of(function, rows)
    losses = [translator.code(call) for call, row in rows if row.code.startswith("keras.losses.")]
    metrics = dict.fromkeys(
        translator.code(call) for call, row in rows if row.name.startswith("tf.metrics.") and row.code
    )
    end = ast.parse(
        f"model = keras.Model(features, {logits})\n"
        f"model.compile(optimizer={_optimizer(calls, source, translator)}, loss={losses[0] if losses else '...'}, "
        f"metrics=[{', '.join(metrics)}])"
    ).body
    last = function.body[-1]
    before, around = statements_before(source.program.tree, last)
    wanted = {logits, *loaded(end[1])} - {"model", "params", *MODULES}
    body, free = slice_of([*before, last], wanted, translator)
    remarks = [] if losses else ["name the loss in compile()"]
    if {"labels", "mode"} & free:
        remarks.append("Keras gives labels to the loss, and says layers whether they train: leave out labels and mode")
    inputs = ast.parse("\n".join(features.lines())).body
    free -= {"features", "labels", "mode", logits}
    return model_code(source, [*inputs, *body, *end], free, around, features, remarks)


def _is_model_function(function: ast.FunctionDef, source: Source) -> bool:
    arguments = {arg.arg for arg in function.args.args}
    return {"features", "labels"} <= arguments and any(
        (source.names.called(node) or "").endswith(".EstimatorSpec") for node in ast.walk(function)
    )


def _logits_of(function: ast.FunctionDef, rows: Sequence[tuple[ast.Call, Counterpart]]) -> str:
    """The variable that the loss is computed from."""
    assigned = {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }  # fmt: skip
    for call, row in rows:
        if row.code.startswith("keras.losses."):
            named = [kw.value for kw in call.keywords if kw.arg in ("logits", "predictions")]
            for value in (*named, *call.args[::-1]):
                if isinstance(value, ast.Name) and value.id in assigned:
                    return value.id
    return next((name for name in _OUTPUTS if name in assigned), _OUTPUTS[0])


def _optimizer(calls: Sequence[ast.Call], source: Source, translator: ModelTranslator) -> str:
    """The code of the first optimizer that is made."""
    for call in calls:
        code = translator.code(call)
        if code.startswith("keras.optimizers.") and not code.startswith("keras.optimizers.schedules."):
            return code
    return _OPTIMIZER

"""The model of a model function of Estimator: logits, loss, optimizer and metrics as a compiled model. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from hpc_train.migration.counterparts.row import Counterpart
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.skeleton.features import features_of
from hpc_train.migration.skeleton.model_code import MODULES, ModelCode, ModelTranslator, model_code
from hpc_train.migration.skeleton.slice import bound_by, loaded, slice_of, statements_before, unwrapped
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
    losses = [call for call, row in rows if row.code.startswith("keras.losses.")]
    loss = translator.code(losses[0]) if losses else "..."
    metrics = dict.fromkeys(
        translator.code(call) for call, row in rows if row.name.startswith("tf.metrics.") and row.code
    )
    end = ast.parse(
        f"model = keras.Model(features, {logits})\n"
        f"model.compile(optimizer={_optimizer(calls, source, translator)}, loss={loss}, "
        f"metrics=[{', '.join(metrics)}])"
    ).body
    last = function.body[-1]
    before, around = statements_before(source.program.tree, last)
    wanted = {logits, *loaded(end[1])} - {"model", "params", *MODULES}
    modes = _Modes(source, function)
    body, free = slice_of(modes.opened([*before, last]), wanted, translator)
    remarks = [] if losses else ["name the loss in compile()"]
    if {"labels", "mode"} & free:
        remarks.append("Keras gives labels to the loss, and says layers whether they train: leave out labels and mode")
    if any((source.names.called(call) or "").endswith(".arg_scope") for call in calls):
        remarks.append("give each layer the arguments that arg_scope sets in the program")
    remarks += modes.remarks({name for statement in body for name in bound_by(statement)})
    remarks += translator.remarks
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
    """The code of the first optimizer that is made; what is called of it, as minimize, is none."""
    for call in calls:
        name = source.names.called(call)
        row = row_of(name, True)
        made = row.code if row is not None else name or ""
        if made.startswith("keras.optimizers.") and not made.startswith("keras.optimizers.schedules."):
            return translator.code(call)
    return _OPTIMIZER


class _Modes:
    """The modes of a model function: a Keras model has none, so that its blocks `if mode == …` are opened."""

    def __init__(self, source: Source, function: ast.FunctionDef) -> None:
        self._source = source
        self._names = {"mode"}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and self._asks(node.value):
                self._names |= bound_by(node)
        self._set: set[str] = set()
        self._lines: dict[str, int] = {}

    def opened(self, block: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements of a block as they are in training, and of other modes what sets new names alone."""
        for statement in unwrapped(list(block)):
            if isinstance(statement, ast.If) and self._asks(statement.test):
                yield from self._of_training(statement)
            elif not isinstance(statement, ast.Return):
                self._set |= bound_by(statement)
                yield statement

    def remarks(self, names: Iterable[str]) -> list[str]:
        """What is left to be done of `names`, which differ by the mode."""
        return [
            f"{name} depends on the mode in line {self._lines[name]} of the program; here it is as in training"
            for name in sorted(self._lines.keys() & set(names))
        ]

    def _of_training(self, choice: ast.If) -> Iterator[ast.stmt]:
        trains = self._trains(choice.test)
        own, others = (choice.orelse, choice.body) if trains is False else (choice.body, choice.orelse)
        for statement in self.opened(own):
            if not self._is_of_training_by_itself(statement):
                self._lines |= dict.fromkeys(bound_by(statement) & loaded(statement), choice.lineno)
            yield statement
        known = set(self._set)
        ends = bool(others) and isinstance(others[-1], ast.Return)
        for statement in self.opened(others):
            again = bound_by(statement) & known
            if not again:
                yield statement
            elif trains is None or not ends:
                self._lines |= dict.fromkeys(again, choice.lineno)

    def _asks(self, test: ast.expr) -> bool:
        """Whether an expression reads the mode, and nothing else."""
        read = {
            node.id
            for node in ast.walk(test)
            if isinstance(node, ast.Name) and (node.id in self._names or self._source.names.resolve(node) is None)
        }
        return bool(read) and read <= self._names

    def _trains(self, test: ast.AST) -> bool | None:
        """What a test of the mode is in training; None: that is not known here."""
        test = self._source.values.constant(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._trains(test.operand)
            return None if inner is None else not inner
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
            return None
        modes = [side.attr for side in (test.left, *test.comparators) if isinstance(side, ast.Attribute)]
        return (modes == ["TRAIN"]) == isinstance(test.ops[0], ast.Eq) if len(modes) == 1 else None

    def _is_of_training_by_itself(self, statement: ast.stmt) -> bool:
        """Whether its layer does nothing else than in training, as Dropout."""
        row = row_of(self._source.names.called(statement.value), True) if isinstance(statement, ast.Assign) else None
        return row is not None and row.code.startswith(("keras.layers.Dropout", "keras.layers.BatchNormalization"))

"""The model of a program that makes a Keras model: with compile, or for a loop of its own. Pure."""

from __future__ import annotations

import ast
import copy

from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.names import MODELS
from hpc_train.migration.skeleton.model_code import ModelCode, ModelTranslator, model_code
from hpc_train.migration.skeleton.slice import loaded, slice_of, statements_before
from hpc_train.migration.source import Source


def compiled_model(source: Source) -> ModelCode | None:
    """The statements that `model.compile(…)` depends on; None: there is none."""
    for node in ast.walk(source.program.tree):
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "compile":
            model = _Plain().visit(copy.deepcopy(call.func.value))
            if isinstance(model, ast.Name) and source.names.resolve(model) is None:
                assert isinstance(node, ast.stmt)
                end = ModelTranslator(source).translated(_Plain().visit(copy.deepcopy(node)))
                assert isinstance(end, ast.stmt)
                return _sliced(source, node, False, model.id, end)
    return None


def model_of_loop(source: Source) -> ModelCode | None:
    """A Keras model, an optimizer and a loss that are assigned, as programs with a tape have them; None: no model."""
    found: dict[str, ast.Assign] = {}
    for node in ast.walk(source.program.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            what = _part(source.names.kind(node.value) or "")
            if what:
                found.setdefault(what, node)
    if "model" not in found:
        return None
    names = {what: ast.unparse(node.targets[0]) for what, node in found.items()}
    last = max(found.values(), key=lambda node: node.lineno)
    parts = {what: names.get(what, "...") for what in ("optimizer", "loss")}
    end = f"{names['model']}.compile(optimizer={parts['optimizer']}, loss={parts['loss']})"
    remarks = tuple(f"name the {what} in compile()" for what in parts if what not in names)
    return _sliced(source, last, True, names["model"], ast.parse(end).body[0], remarks)


def _part(kind: str) -> str | None:
    """Which part of a model a value of this kind is."""
    row = row_of(kind)
    made = row.code if row is not None else kind
    if kind in MODELS or kind.startswith("keras.applications."):
        return "model"
    if kind == "hvd.DistributedOptimizer" or made.startswith("keras.optimizers."):
        return None if made.startswith("keras.optimizers.schedules.") else "optimizer"
    return "loss" if kind.startswith("keras.losses.") else None


def _sliced(
    source: Source, last: ast.stmt, included: bool, model: str, end: ast.stmt, remarks: tuple[str, ...] = ()
) -> ModelCode:
    """The statements before `last` (with it, where it is `included`) that `end` depends on, and `end`."""
    before, functions = statements_before(source.program.tree, last)
    if functions and any(arg.arg == "self" for arg in functions[-1].args.args):
        before = [_Plain().visit(copy.deepcopy(statement)) for statement in before]
    body, free = slice_of([*before, last] if included else before, loaded(end), ModelTranslator(source))
    named = [] if model == "model" else ast.parse(f"model = {model}").body
    return model_code(source, [*body, end, *named], free, functions, remarks=remarks)


class _Plain(ast.NodeTransformer):
    """`name` in the place of `self.name`, for statements of a method; classes stay as they are."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)

"""What of a program makes a model: the statements that a last one depends on, going backwards (Weiser, 1984). Pure."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence

from hpc_train.migration.replacement import Translator

_BUILT_IN = frozenset(dir(builtins))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def statements_before(tree: ast.Module, last: ast.AST) -> tuple[list[ast.stmt], list[ast.FunctionDef]]:
    """The statements that come before `last` in its block and those around it, and the functions that it is in.

    The body of `with` stands for such a statement. Functions and classes that come after it are among them, too.
    """
    found: list[ast.stmt] = []
    functions: list[ast.FunctionDef] = []
    block: Sequence[ast.stmt] = tree.body
    while True:
        inner: Sequence[ast.stmt] | None = None
        for statement in unwrapped(block):
            if statement is last:
                return found, functions
            if any(node is last for node in ast.walk(statement)):
                if isinstance(statement, ast.FunctionDef):
                    functions.append(statement)
                blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
                inner = next((b for b in blocks if any(node is last for each in b for node in ast.walk(each))), None)
                break
            found.append(statement)
        if inner is None:
            return found, functions
        rest = block[block.index(statement) + 1 :] if statement in block else []
        found = [*found, *(each for each in rest if isinstance(each, _Function | ast.ClassDef))]
        block = inner


def slice_of(
    before: Iterable[ast.stmt], wanted: Iterable[str], translator: Translator
) -> tuple[list[ast.stmt], set[str]]:
    """The translated statements of `before` that the names `wanted` depend on, in order, and names that none binds."""
    kept: list[ast.stmt] = []
    needed = set(wanted)
    for statement in reversed(list(before)):
        bound = bound_by(statement)
        if not (bound & needed or _changes(statement, needed)):
            continue
        translated = translator.translated(statement)
        assert isinstance(translated, ast.stmt)
        if _is_itself(translated):
            continue
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.ClassDef):
            needed -= bound
        needed |= loaded(translated)
        kept.append(translated)
    return kept[::-1], needed - _BUILT_IN


def loaded(node: ast.AST) -> set[str]:
    """The names that `node` reads, without those that functions and comprehensions in it bind themselves."""
    own = {arg.arg for inner in ast.walk(node) if isinstance(inner, ast.arguments) for arg in _all_arguments(inner)}
    own |= {
        name.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.comprehension)
        for name in ast.walk(inner.target)
        if isinstance(name, ast.Name)
    }
    if isinstance(node, _Function | ast.ClassDef):
        own |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return {
        name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
    } - own  # fmt: skip


def unwrapped(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block, with those of `with` in its place."""
    for statement in block:
        if isinstance(statement, ast.With):
            yield from unwrapped(statement.body)
        else:
            yield statement


def bound_by(statement: ast.stmt) -> set[str]:
    """The names that `statement` sets."""
    if isinstance(statement, _Function | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    return {name.id for name in ast.walk(statement) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}


def _changes(statement: ast.stmt, names: set[str]) -> bool:
    """Whether it calls a method of one of `names`, as `model.add(layer)`, or sets what is in one."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        target: ast.expr = statement.value.func
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        return False
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return False
    while isinstance(target, ast.Attribute | ast.Subscript):
        if isinstance(target, ast.Attribute) and target.attr in _RUNS:
            return False
        target = target.value
    return isinstance(target, ast.Name) and target.id in names


_RUNS = ("fit", "evaluate", "predict", "summary", "save", "save_weights", "load_weights", "compile", "fit_generator",
         "minimize", "apply_gradients")  # fmt: skip
"""Methods that do not make a model."""


def _is_itself(statement: ast.stmt) -> bool:
    """`optimizer = optimizer`, as it remains of Horovod's wrapper."""
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and ast.unparse(statement.targets[0]) == ast.unparse(statement.value)
    )


def _all_arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (each for each in (arguments.vararg, arguments.kwarg) if each is not None)

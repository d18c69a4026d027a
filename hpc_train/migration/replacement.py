"""Code in the place of code: calls of a program with the user's own arguments in what replaces them. Pure."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from hpc_train.migration.counterparts.row import Counterpart, Verdict
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.names import Names

LEGACY = r"^keras\.optimizers\.(?:legacy|experimental)\."
"""Optimizers of Keras 2 that Keras 3 has without these words."""
_INPUTS = "tf.estimator.inputs."
_RULES = "tf.estimator.experimental.stop_if_"
_RANKS = {"hvd.size", "hvd.rank"}
_SHARDS = {"num_workers", "num_shards", "worker_index", "worker_id", "task_index", "task_id", "world_size", "rank"}
"""What programs call the number of workers, and theirs, when they shard a dataset by them."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, by name.

    Attributes:
        given: Those that have a name.
        unnamed: `*args`, and what is beyond the signature.
        gone: Names of those given that there are no more.
    """

    given: dict[str, ast.expr]
    unnamed: tuple[ast.expr, ...]
    gone: tuple[str, ...]


def arguments_of(call: ast.Call, row: Counterpart) -> Arguments:
    """The arguments of `call` by the names of the row's signature."""
    names = [token.partition("=")[0].rstrip("?") for token in row.signature.split()]
    names = names[: names.index("*")] if "*" in names else names
    given: dict[str, ast.expr] = {}
    unnamed: list[ast.expr] = []
    for place, value in enumerate(call.args):
        if isinstance(value, ast.Starred) or place >= len(names) or unnamed:
            unnamed.append(value)
        else:
            given[names[place]] = value
    for keyword in call.keywords:
        if keyword.arg is None:
            unnamed.append(ast.Call(ast.Name("dict"), [], [keyword]))
        else:
            given[keyword.arg] = keyword.value
    return Arguments(given, tuple(unnamed), tuple(name for name in given if name in row.gone))


def replaced(call: ast.Call, row: Counterpart) -> ast.expr:
    """The row's code with the arguments of `call`; `...` where a needed one is missing."""
    if not row.signature and isinstance(called := _expression(row.code), ast.Attribute):
        return ast.Call(called, call.args, call.keywords)
    arguments = arguments_of(call, row)
    values = dict(arguments.given)
    if isinstance(call.func, ast.Attribute):
        values["self"] = call.func.value
    missing: set[str] = set()
    defaults: dict[str, ast.expr] = {}
    for token in row.signature.split():
        name, _, default = token.partition("=")
        value = _expression(default or "...")
        if name == "*" or (name.rstrip("?") in values and not (_is_none(values.get(name)) and _has_names(value))):
            continue
        if default:
            defaults[name] = value
        elif name.endswith("?"):
            missing.add(name.rstrip("?"))
        else:
            values[name] = ast.Constant(...)
    for name, standard in defaults.items():
        if isinstance(standard, ast.Name) and standard.id in missing:
            missing.add(name)
            continue
        values[name] = _Template(values, missing).visit(standard)
    template = _expression(row.code)
    used = {node.id for node in ast.walk(template) if isinstance(node, ast.Name)}
    unnamed: list[ast.expr] = []
    rest: list[ast.keyword] = []
    if not row.signature.endswith("*"):
        given = {name: value for name, value in arguments.given.items() if name not in used and name not in row.gone}
        rest = [ast.keyword(row.renamed.get(name, name), value) for name, value in given.items()]
        rest += [keyword for keyword in call.keywords if keyword.arg is None]
        unnamed = [value for value in arguments.unnamed if isinstance(value, ast.Starred)]
    filled = _Template(values, missing, unnamed, rest).visit(template)
    assert isinstance(filled, ast.expr)
    return ast.fix_missing_locations(filled)


class Translator(ast.NodeTransformer):
    """Puts counterparts in the place of what a program calls, in copies of its expressions and statements.

    Args:
        names: Of the program.
        params: Hyper-parameters: an attribute of that name, such as `FLAGS.rate`, becomes `params["rate"]`.
        in_model: Whether operations of TensorFlow become those of Keras.
    """

    def __init__(self, names: Names, params: Iterable[str] = (), in_model: bool = False) -> None:
        self._names, self._params, self._in_model = names, frozenset(params), in_model

    def translated(self, node: ast.AST) -> ast.AST:
        """A copy of `node` with counterparts."""
        found: ast.AST = self.visit(copy.deepcopy(node))
        return ast.fix_missing_locations(found)

    def code(self, node: ast.AST) -> str:
        """The same as text."""
        return ast.unparse(self.translated(node))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call of what has a row."""
        name = self._names.called(node)
        row = row_of(name, self._in_model)
        if is_shard_of_rank(node, self._names):
            node.args = [_expression("context.num_input_pipelines"), _expression("context.input_pipeline_id")]
            node.keywords = []
            node.func = self.visit(node.func)
            return node
        if name == "tf.estimator.TrainSpec":
            self._move_rules(node)
        if row is not None and row.name.startswith(_INPUTS):
            row = _in_order(row) if _is_false(arguments_of(node, row).given.get("shuffle")) else row
        if row is not None and "config=ht.RunConfig(model_dir)" in row.signature.split():
            self._move_model_dir(node, row)
        node.args = [self.visit(arg) for arg in node.args]
        node.keywords = [
            ast.keyword(keyword.arg, value)
            for keyword in node.keywords
            if not _is_emptied(keyword.value, value := self.visit(keyword.value))
        ]
        if row is not None and row.code:
            return replaced(node, row)
        node.func = self.visit(node.func)
        if name is not None and name.startswith("keras.optimizers."):
            _change_keywords(node)
        if is_list_of_variables(node, self._names):
            return node.func
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """`hvd.rank() == 0`."""
        if is_chief_test(node, self._names):
            return _expression("ht.is_chief()" if isinstance(node.ops[0], ast.Eq) else "not ht.is_chief()")
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A name with dots."""
        if node.attr in self._params and self._names.resolve(node) in (None, f"FLAGS.{node.attr}"):
            return _expression(f"params[{node.attr!r}]")
        return self._named(node) or self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A name that was imported."""
        return self._named(node) or node

    def visit_List(self, node: ast.List) -> ast.AST:
        """Hooks and the like: those that are left out are."""
        kept = [item for item in node.elts if not self._is_left_out(item)]
        return ast.List([self.visit(item) for item in kept], node.ctx)

    def _is_left_out(self, node: ast.expr) -> bool:
        row = row_of(self._names.kind(node) if isinstance(node, ast.Name) else self._names.called(node))
        return row is not None and row.verdict is Verdict.DROPPED and not row.code

    def _move_rules(self, call: ast.Call) -> None:
        """Puts the hooks that stop training early into `early_stopping`."""
        for keyword in call.keywords:
            if keyword.arg != "hooks" or not isinstance(keyword.value, ast.List):
                continue
            hooks = keyword.value.elts
            rules = [hook for hook in hooks if (self._names.kind(hook) or "").startswith(_RULES)]
            if rules:
                keyword.value.elts = [hook for hook in hooks if hook not in rules]
                call.keywords.append(ast.keyword("early_stopping", ast.List(rules, ast.Load())))
                call.keywords = [each for each in call.keywords if each is not keyword or keyword.value.elts]
                return

    def _move_model_dir(self, call: ast.Call, row: Counterpart) -> None:
        """Puts the model_dir of an estimator into the RunConfig beside it, where that has none."""
        given = arguments_of(call, row).given
        folder, config = given.get("model_dir"), given.get("config")
        if folder is None or _is_none(folder) or not isinstance(config, ast.Call):
            return
        inner = row_of(self._names.called(config))
        if inner is None or inner.name != "tf.estimator.RunConfig":
            return
        if _is_none(arguments_of(config, inner).given.get("model_dir", ast.Constant(None))):
            config.args = [folder, *config.args[1:]]
            config.keywords = [each for each in config.keywords if each.arg != "model_dir"]

    def _named(self, node: ast.expr) -> ast.expr | None:
        name = self._names.resolve(node)
        if name is None:
            return None
        row = row_of(name, self._in_model)
        if row is not None and row.code and row.name == name:
            template = _expression(row.code)
            while isinstance(template, ast.Call):
                template = template.func
            if isinstance(template, ast.Attribute | ast.Name | ast.Constant):
                return template
        if name.startswith("keras."):
            return _expression(re.sub(LEGACY, "keras.optimizers.", name))
        return None


def is_list_of_variables(node: ast.AST, names: Names) -> bool:
    """Whether a call is `optimizer.variables()`, which is a list in Keras 3 and no method."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "variables":
        return False
    kind = names.kind(node.func.value) or ""
    row = row_of(kind)
    made = row.code if row is not None else kind
    return made.startswith("keras.optimizers.") or kind == "hvd.DistributedOptimizer"


def _change_keywords(call: ast.Call) -> None:
    """Arguments of Keras 2's optimizers: lr, and decay, which is a schedule."""
    for keyword in call.keywords:
        keyword.arg = "learning_rate" if keyword.arg == "lr" else keyword.arg
    decay = next((each for each in call.keywords if each.arg == "decay"), None)
    if decay is None:
        return
    call.keywords.remove(decay)
    if isinstance(decay.value, ast.Constant) and not decay.value.value:
        return
    rate = next((each for each in call.keywords if each.arg == "learning_rate"), None)
    value = call.args[0] if call.args else rate.value if rate is not None else ast.Constant(...)
    made = _expression("keras.optimizers.schedules.InverseTimeDecay")
    schedule = ast.Call(made, [value, ast.Constant(1), decay.value], [])
    if call.args:
        call.args[0] = schedule
    elif rate is not None:
        rate.value = schedule
    else:
        call.keywords.append(ast.keyword("learning_rate", schedule))


def is_chief_test(node: ast.AST, names: Names) -> bool:
    """Whether an expression compares a rank with 0."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return False
    other = node.comparators[0]
    return names.called(node.left) == "hvd.rank" and isinstance(other, ast.Constant) and other.value == 0


def is_shard_of_rank(node: ast.AST, names: Names) -> bool:
    """Whether a call is `dataset.shard(number of workers, own number)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "shard":
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    found = {names.called(inner) for arg in given for inner in ast.walk(arg)}
    words = {getattr(inner, "id", getattr(inner, "attr", "")) for arg in given for inner in ast.walk(arg)}
    return len(given) == 2 and bool(found & _RANKS or words & _SHARDS)


def _in_order(row: Counterpart) -> Counterpart:
    """The row of an input function that does not shuffle."""
    return replace(row, code=row.code.replace(".shuffle(queue_capacity)", ""))


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _has_names(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Name) for inner in ast.walk(node))


def _is_emptied(before: ast.expr, after: ast.expr) -> bool:
    """Whether all items of a list were left out."""
    return isinstance(before, ast.List) and bool(before.elts) and isinstance(after, ast.List) and not after.elts


class _Template(ast.NodeTransformer):
    """Fills the names of a row's code."""

    def __init__(
        self,
        values: Mapping[str, ast.expr],
        missing: Set[str],
        unnamed: Sequence[ast.expr] = (),
        rest: Sequence[ast.keyword] = (),
    ) -> None:
        self._values, self._missing, self._unnamed, self._rest = values, missing, unnamed, rest

    def visit_Call(self, node: ast.Call) -> ast.AST:
        args: list[ast.expr] = []
        keywords: list[ast.keyword] = []
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                args += self._unnamed
                keywords += self._rest
            elif not self._is_missing(arg):
                args.append(self.visit(arg))
        own = [
            ast.keyword(keyword.arg, self.visit(keyword.value))
            for keyword in node.keywords
            if not self._is_missing(keyword.value)
        ]
        return ast.Call(self.visit(node.func), args, own + keywords)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._values.get(node.id, node)

    def _is_missing(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._missing


def _expression(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body

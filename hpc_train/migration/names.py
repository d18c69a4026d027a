"""What the names of a program stand for: imports, aliases, and variables that hold an estimator. Pure.

A name means the same in the whole file. `tf.estimator.X`, `tf.compat.v1.estimator.X` and `from tensorflow.estimator
import X` have one full name, `tf.estimator.X`; so have Horovod's modules, `hvd.X`, and those of Keras, `keras.X`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

ESTIMATOR = "Estimator"
"""The kind of each variable that holds an estimator."""
RUN_CONFIG = "tf.estimator.RunConfig"
"""The kind of each variable that holds one, also one of its copies."""
ARGUMENTS = "argparse.Namespace"
"""The kind of what an argument parser returns."""
MODELS = ("keras.Model", "keras.Sequential", "keras.models.Model", "keras.models.Sequential")
_RULES = (
    (r"tensorflow_estimator\.python\.estimator\.(?:\w+\.)*(\w+)", r"tf.estimator.\1"),
    (r"tensorflow_estimator(\.(?:contrib|estimator))?\b", r"tf.estimator"),
    (r"tensorflow\.(?:python\.|_api\.v\d\.)?(?:compat\.v[12]\.)*", "tf."),
    (r"tensorflow$", "tf"),
    (r"tf\.compat\.v[12]\b", "tf"),
    (r"tf\.(?:\w+\.)*keras\b", "keras"),
    (r"tf\.estimator\.(?:estimator|estimator_lib|run_config|training)\.(\w+)", r"tf.estimator.\1"),
    (r"tf\.estimator\.(\w+Hook|SessionRun\w+|CheckpointSaverListener)$", r"tf.train.\1"),
    (r"tf\.(losses|metrics|initializers)\.([A-Z])", r"keras.\1.\2"),
    (r"tf\.(optimizers)\b", r"keras.\1"),
    (r"horovod\.(?:tensorflow\.keras|keras|tensorflow)\b", "hvd"),
    (r"absl\.flags\b|tf\.(?:app\.)?flags\b", "flags"),
    (r"flags\.FLAGS\b", "FLAGS"),
)
_MAKERS = re.compile(
    r"tf\.estimator\.(Estimator|(?:\w+)(?:Classifier|Regressor|Estimator|Ranker)|BaselineEstimator)"
    r"|keras\.estimator\.model_to_estimator|tf\.estimator\.tpu\.TPUEstimator"
    r"|tf\.contrib\.\w+\.(?:\w*Estimator|\w+Classifier|\w+Regressor)"
)


def full_name(dotted: str) -> str:
    """The one full name of what `dotted`, as it is imported, stands for."""
    for pattern, with_ in _RULES:
        dotted = re.sub(rf"^{pattern}", with_, dotted)
    return dotted


_Binding = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.FunctionDef | ast.ClassDef


class Names:
    """The names of one program."""

    def __init__(self, tree: ast.Module) -> None:
        self.aliases: dict[str, str] = {}
        self.stars: dict[int, str] = {}
        self._kinds: dict[str, str] = {}
        binding = [node for node in ast.walk(tree) if isinstance(node, _Binding)]
        for node in binding:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for _ in range(3):  # an alias of an alias, a function that returns one
            for node in binding:
                self._learn(node)

    def resolve(self, node: ast.AST) -> str | None:
        """The full name of an expression such as `tf.estimator.RunConfig`; None: it begins with no name imported."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.aliases:
            return None
        return full_name(".".join([self.aliases[node.id], *reversed(parts)]))

    def called(self, node: ast.AST) -> str | None:
        """The full name of what a call calls; `Estimator.train` where it is a method of a variable."""
        if not isinstance(node, ast.Call):
            return None
        name = self.resolve(node.func)
        if name is None and isinstance(node.func, ast.Attribute) and self.kind(node.func.value) == ESTIMATOR:
            return f"{ESTIMATOR}.{node.func.attr}"
        if name is None and isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
            return f"{RUN_CONFIG}.replace" if self.kind(node.func.value) == RUN_CONFIG else None
        return name

    def kind(self, node: ast.AST) -> str | None:
        """What an expression's value is: ESTIMATOR, the full name of the class or function that made it, or None."""
        if isinstance(node, ast.Call):
            name = self.resolve(node.func)
            if name is not None:
                return ESTIMATOR if _MAKERS.fullmatch(name) else name
            if self.called(node) == f"{RUN_CONFIG}.replace":
                return RUN_CONFIG
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("parse_args", "parse_known_args"):
                return ARGUMENTS
            return self._kinds.get(f"{ast.unparse(node.func)}()")
        if isinstance(node, ast.Name | ast.Attribute):
            return self._kinds.get(ast.unparse(node))
        return None

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    self.aliases[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    self.aliases[top] = top
            return
        for alias in node.names if node.level == 0 else ():
            if alias.name == "*":
                self.stars[node.lineno] = str(node.module)
            else:
                self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef):
            for returned in _returns(node):
                if kind := self.kind(returned):
                    self._kinds[f"{node.name}()"] = self._kinds[f"self.{node.name}()"] = kind
            for arg in node.args.args:
                if arg.annotation is not None and _MAKERS.fullmatch(self.resolve(arg.annotation) or ""):
                    self._kinds[arg.arg] = ESTIMATOR
            return
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                name = self.resolve(base) or self._kinds.get(f"{ast.unparse(base)}()")
                if name is not None and name in MODELS:
                    self._kinds[f"{node.name}()"] = name
            return
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            return
        for target in targets:
            if isinstance(target, ast.Tuple) and target.elts and self.kind(value) == ARGUMENTS:
                target = target.elts[0]  # of parse_known_args
            if not isinstance(target, ast.Name | ast.Attribute):
                continue
            name = self.resolve(value)
            if name is not None and isinstance(target, ast.Name):
                self.aliases.setdefault(target.id, name)
            elif kind := self.kind(value):
                self._kinds[ast.unparse(target)] = kind


def _returns(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value

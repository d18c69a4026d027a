"""Values that a program's text shows: numbers, texts, its flags with their defaults. Nothing is run. Pure."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpc_train.migration.names import ARGUMENTS, Names

UNKNOWN: Any = object()
"""What the text does not show."""
_MOST = 1 << 53
_MAX_DEPTH = 50
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_JOB_DIR = "--job-dir of hpc-train"
_RANKS = "the launcher says which ranks there are"
PLACES = {
    **dict.fromkeys(("batch_size", "train_batch_size"), "data.train.batch_size"),
    "eval_batch_size": "data.eval.batch_size",
    **dict.fromkeys(("max_steps", "num_steps", "num_train_steps", "steps", "train_steps"), "train.max_steps"),
    **dict.fromkeys(("epochs", "num_epochs", "train_epochs"), "data.train.epochs"),
    **dict.fromkeys(("eval_steps", "num_eval_steps"), "eval.steps"),
    **dict.fromkeys(("save_checkpoints_steps", "checkpoint_steps"), "run.save_checkpoints_steps"),
    "save_checkpoints_secs": "run.save_checkpoints_secs",
    "keep_checkpoint_max": "run.keep_checkpoint_max",
    **dict.fromkeys(("seed", "random_seed", "tf_random_seed"), "run.tf_random_seed"),
    **dict.fromkeys(("throttle_secs", "eval_throttle_secs"), "eval.throttle_secs"),
    **dict.fromkeys(("data", "data_dir", "train_data", "train_file", "train_files"), "data.train.shards"),
    **dict.fromkeys(("eval_data", "eval_file", "eval_files", "test_file"), "data.eval.shards"),
    **dict.fromkeys(
        ("checkpoint_dir", "job_dir", "log_dir", "logdir", "model_dir", "output_dir", "train_dir"), _JOB_DIR
    ),
    **dict.fromkeys(
        ("job_name", "local_rank", "num_gpus", "num_workers", "ps_hosts", "task_id", "task_index", "task_type",
         "worker_hosts"), _RANKS
    ),
}  # fmt: skip
"""Where in job.yaml a flag of the name goes, if not to params."""


@dataclass(frozen=True)
class Flag:
    """A setting of a program: of its command line, by tf.app.flags, absl or argparse.

    Attributes:
        default: UNKNOWN where the text does not show it.
        node: The call that defines it.
    """

    name: str
    default: Any
    node: ast.Call

    @property
    def place(self) -> str | None:
        """Where in job.yaml it goes; None: to params."""
        return PLACES.get(self.name)


class Values:
    """The values of one program."""

    def __init__(self, tree: ast.Module, names: Names) -> None:
        self._names = names
        self._constants: dict[str, ast.expr] = {}
        bound = Counter(
            node.arg if isinstance(node, ast.arg) else node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if bound[name] == 1:
                    self._constants[name] = node.value
        self.flags: dict[str, Flag] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (flag := self._flag(node)) is not None:
                self.flags.setdefault(flag.name, flag)

    def of(self, node: ast.AST | None, depth: int = 0) -> Any:
        """The value of an expression, UNKNOWN where the text does not show it."""
        if depth > _MAX_DEPTH or node is None:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return UNKNOWN if isinstance(node.value, bytes | complex) or node.value is ... else node.value
        if isinstance(node, ast.Name):
            return self.of(self._constants.get(node.id), depth + 1)
        if isinstance(node, ast.Attribute):
            flag = self.flag_of(node)
            return UNKNOWN if flag is None else flag.default
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.of(item, depth + 1) for item in node.elts]
            return UNKNOWN if UNKNOWN in items else items
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.of(node.operand, depth + 1)
            return -value if _is_number(value) else UNKNOWN
        if isinstance(node, ast.BinOp):
            return self._computed(node, depth)
        return UNKNOWN

    def constant(self, node: ast.AST) -> ast.AST:
        """What a name that is assigned once in the file was assigned; another expression itself."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(node, ast.Name) or node.id not in self._constants:
                break
            node = self._constants[node.id]
        return node

    def flag_of(self, node: ast.AST) -> Flag | None:
        """The flag that `FLAGS.rate`, or `args.rate`, is."""
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            return None
        flag = self.flags.get(node.attr)
        known = self._names.resolve(node)
        kind = self._names.kind(node.value)
        return flag if known in (None, f"FLAGS.{node.attr}") and kind in (None, ARGUMENTS, "FLAGS") else None

    def _computed(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.of(node.left, depth + 1), self.of(node.right, depth + 1)
        operation = _OPERATIONS.get(type(node.op))
        if operation is None or not (_is_number(left) and _is_number(right)):
            return UNKNOWN
        try:
            return operation(left, right)
        except (ZeroDivisionError, OverflowError):
            return UNKNOWN

    def _flag(self, call: ast.Call) -> Flag | None:
        name = self._names.resolve(call.func) or ""
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if name.startswith("flags.DEFINE_"):
            first = self.of(call.args[0] if call.args else given.get("name"))
            default = call.args[1] if len(call.args) > 1 else given.get("default")
            return Flag(first, self.of(default), call) if isinstance(first, str) else None
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            return None
        words = [self.of(arg) for arg in call.args]
        long = [word for word in words if isinstance(word, str) and word.startswith("--")]
        if not long:
            return None
        own = self.of(given.get("dest"))
        name = own if isinstance(own, str) else long[0].lstrip("-").replace("-", "_")
        if "default" in given:
            value = self.of(given["default"])
        else:
            action = self.of(given.get("action"))
            value = action == "store_false" if action in ("store_true", "store_false") else UNKNOWN
        return Flag(name, value, call)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST

"""What a program has that changes: each call, class and function, with its place and what replaces it. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hpc_train.migration.counterparts.row import Counterpart, Verdict
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.definitions import is_model_function, of_class, of_function, of_imports
from hpc_train.migration.finding import Finding, finding_at
from hpc_train.migration.layout import laid_out
from hpc_train.migration.names import ESTIMATOR, Names
from hpc_train.migration.program import Program
from hpc_train.migration.replacement import (
    LEGACY,
    Translator,
    arguments_of,
    is_chief_test,
    is_list_of_variables,
    is_shard_of_rank,
)
from hpc_train.migration.values import UNKNOWN, Flag, Values

WIDTH = 72
"""Of code that is shown: what 80 columns have room for beside a margin."""
_TF_CONFIG = (
    "hpc_train ignores TF_CONFIG: mpirun, srun or `hpc-train submit` start the ranks, which find each other by MPI; "
    "rank 0 is the chief, the type `evaluator` is `chief: dedicated` or `hpc-train evaluate --follow`, and `ps` is "
    "`strategy: async`"
)
_OF_LIBRARIES = re.compile(r"(getattr\()?(tf|hvd|horovod|tensorflow|tensorflow_estimator|keras\.estimator)\b")
"""Findings without which all others are of no interest: settings and datasets are in any program."""
_KERAS_2 = {
    "lr": "it is learning_rate in Keras 3",
    "decay": "it is a schedule, the learning rate, in Keras 3",
    "experimental_run_tf_function": "Keras 3 has none",
}
"""Arguments of Keras 2."""


def findings_in(program: Program, names: Names, values: Values) -> list[Finding]:
    """All of one program, by line; none of a program without tf.estimator, TensorFlow 1 and Horovod."""
    found = list(_Reader(names, values).read(program.tree))
    if not any(_OF_LIBRARIES.match(finding.name) for finding in found):
        return []
    return sorted(found, key=lambda finding: finding.line)


class _Reader:
    def __init__(self, names: Names, values: Values) -> None:
        self._names, self._values = names, values
        self._translator, self._of_models = Translator(names), Translator(names, in_model=True)
        self._in_models: set[int] = set()
        self._settled: set[int] = set()
        self._flags = {id(flag.node): flag for flag in values.flags.values()}

    def read(self, tree: ast.Module) -> Iterator[Finding]:
        """What is around comes before what is in it, which it may settle."""
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            if id(node) in self._settled:
                continue
            yield from self._of(node)
            waiting += reversed(list(ast.iter_child_nodes(node)))

    def _of(self, node: ast.AST) -> Iterator[Finding]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from of_imports(node, self._names)
        elif isinstance(node, ast.ClassDef):
            self._settled |= {id(base) for base in node.bases}
            yield from of_class(node, self._names)
        elif isinstance(node, ast.FunctionDef):
            if is_model_function(node):
                self._in_models |= {id(inner) for inner in ast.walk(node)}
            yield from of_function(node)
        elif isinstance(node, ast.Expr | ast.Assign) and self._pins_a_gpu(node):
            self._settle(node)
            why = "each rank sees the GPU of its own alone before TensorFlow starts; leave the statement out"
            yield finding_at(node, "GPU by local rank", Verdict.DROPPED, notes=(why,))
        elif isinstance(node, ast.Compare) and is_chief_test(node, self._names):
            self._settle(node)
            why = (
                "checkpoints, exports, logs and summaries are written by rank 0 without a test; ht.is_chief() is for "
                "what else one rank alone does, and nothing that ranks do together may be below it"
            )
            yield finding_at(node, "hvd.rank", Verdict.REPLACED, self._code(node), (why,))
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Attribute | ast.Name):
            yield from self._reference(node)
        elif isinstance(node, ast.Constant) and node.value == "TF_CONFIG":
            yield finding_at(node, "TF_CONFIG", Verdict.DROPPED, notes=(_TF_CONFIG,))

    def _call(self, node: ast.Call) -> Iterator[Finding]:
        flag = self._flags.get(id(node))
        if flag is not None:
            self._settle(node.func)
            yield self._setting(flag)
            return
        if is_shard_of_rank(node, self._names):
            for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
                self._settle(arg)
            why = (
                "in input_fn(context), an ht.InputContext; or `hpc-train shard` the data: ht.HDF5Input deals rows to "
                "ranks by itself"
            )
            yield finding_at(node, "Dataset.shard", Verdict.REPLACED, self._code(node), (why,))
            return
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and node.args:
            name = self._names.resolve(node.args[0])
            if name is not None and name.split(".")[0] in ("tf", "hvd"):
                why = "a name that getattr looks up is not followed; write it out, and run `hpc-train migrate` again"
                yield finding_at(node, f"getattr({name}, …)", Verdict.MISSING, notes=(why,))
            return
        name = self._names.called(node)
        row = row_of(name, id(node) in self._in_models)
        if name is not None and row is not None:
            self._settle(node.func)
            yield self._with_counterpart(node, name, row)
        elif name is None or name.startswith("keras."):
            yield from self._keras_2(node, name)

    def _with_counterpart(self, node: ast.Call, name: str, row: Counterpart) -> Finding:
        arguments = arguments_of(node, row)
        notes = [row.why] if row.why else []
        if name.startswith("tf.contrib.") and row.verdict is not Verdict.MISSING:
            notes.append("tf.contrib is gone since TensorFlow 2.0")
        notes += [f"{gone}: {row.gone[gone]}" for gone in arguments.gone]
        if any(keyword.arg is None for keyword in node.keywords):
            notes.append("what ** holds is not known here; its names have to be those above")
        code = self._code(node) if row.code else ""
        return finding_at(node, name, row.verdict, code, tuple(notes))

    def _reference(self, node: ast.Attribute | ast.Name) -> Iterator[Finding]:
        if isinstance(node, ast.Attribute) and node.attr in ("eval_dir", "model_dir"):
            if self._names.kind(node.value) == ESTIMATOR:
                row = row_of(f"{ESTIMATOR}.{node.attr}")
                assert row is not None
                yield finding_at(node, f"{ESTIMATOR}.{node.attr}", row.verdict, notes=(row.why,))
            return
        if not isinstance(node.ctx, ast.Load):
            return
        name = self._names.resolve(node)
        row = row_of(name, id(node) in self._in_models)
        if name is None or row is None:
            return
        self._settle(node)
        if name in ("tf.contrib", "tf.estimator", "tf.estimator.inputs", "tf.estimator.export", "hvd.callbacks"):
            return
        code = self._code(node) if row.code and row.name == name else ""
        notes = (row.why,) if row.why else ()
        yield finding_at(node, name, row.verdict, "" if code == ast.unparse(node) else code, notes)

    def _setting(self, flag: Flag) -> Finding:
        place = flag.place
        default = "..." if flag.default is UNKNOWN else flag.default
        if place is None:
            code, why = f'params["{flag.name}"]', "`params:` of job.yaml, a dict that the model function is given"
            if flag.default is not UNKNOWN:
                why += f"; its default is {default!r}"
            verdict = Verdict.REPLACED
        elif "." in place:
            code, verdict = place, Verdict.REPLACED
            why = f"that key of job.yaml, or --set {place}=VALUE"
        else:
            code, why, verdict = "", place, Verdict.DROPPED
        return finding_at(flag.node, f"setting {flag.name}", verdict, code, (why,))

    def _keras_2(self, node: ast.Call, name: str | None) -> Iterator[Finding]:
        if name is not None and re.match(LEGACY, name):
            self._settle(node.func)
            why = "Keras 3 has one optimizer of each name"
            yield finding_at(node, name, Verdict.REPLACED, self._code(node), (why,))
            return
        if is_list_of_variables(node, self._names):
            why = "it is a list in Keras 3, and no method"
            yield finding_at(node, "optimizer.variables", Verdict.REPLACED, self._code(node), (why,))
        is_compile = isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
        for keyword in node.keywords:
            of_optimizer = keyword.arg in ("lr", "decay") and (name or "").startswith("keras.optimizers.")
            if of_optimizer or (is_compile and keyword.arg == "experimental_run_tf_function"):
                assert keyword.arg is not None
                why = _KERAS_2[keyword.arg]
                code = self._code(node) if of_optimizer else ""
                yield finding_at(node, f"argument {keyword.arg}", Verdict.REPLACED if code else Verdict.DROPPED,
                                    code, (why,))  # fmt: skip

    def _pins_a_gpu(self, node: ast.AST) -> bool:
        inner = list(ast.walk(node))
        words = {getattr(each, "attr", getattr(each, "id", "")) for each in inner}
        words |= {each.arg for each in inner if isinstance(each, ast.keyword) and each.arg}
        words |= {each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        pins = words & {"set_visible_devices", "visible_device_list", "CUDA_VISIBLE_DEVICES"}
        return bool(pins) and any(self._names.called(each) == "hvd.local_rank" for each in inner)

    def _code(self, node: ast.expr) -> str:
        translator = self._of_models if id(node) in self._in_models else self._translator
        return "\n".join(laid_out(translator.translated(node), WIDTH))

    def _settle(self, node: ast.AST) -> None:
        self._settled |= {id(inner) for inner in ast.walk(node)}

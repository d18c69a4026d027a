"""What a program has that changes: each call, class and function, with its place and what replaces it. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hpc_train.migration.counterparts.horovod import IMPORT_NOTE, MXNET, SPARK, TORCH
from hpc_train.migration.counterparts.row import Counterpart, Verdict
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.layout import laid_out
from hpc_train.migration.names import ESTIMATOR, Names
from hpc_train.migration.program import Program
from hpc_train.migration.replacement import Translator, arguments_of, is_chief_test, is_shard_of_rank
from hpc_train.migration.values import UNKNOWN, Flag, Values

WIDTH = 72
"""Of code that is shown: what 80 columns have room for beside a margin."""
_MODULES = {
    "horovod.tensorflow": "hpc_train.horovod.tensorflow",
    "horovod.tensorflow.keras": "hpc_train.horovod.tensorflow.keras",
    "horovod.keras": "hpc_train.horovod.keras",
}
_OUT_OF_SCOPE = {"torch": TORCH, "mxnet": MXNET, "spark": SPARK, "ray": SPARK}
_TF_CONFIG = (
    "hpc_train ignores TF_CONFIG: mpirun, srun or `hpc-train submit` start the ranks, which find each other by MPI; "
    "rank 0 is the chief, the type `evaluator` is `chief: dedicated` or `hpc-train evaluate --follow`, and `ps` is "
    "`strategy: async`"
)
_SESSION_METHODS = {
    "begin": "begin(context)",
    "after_create_session": "begin(context)",
    "before_run": "before_step(step)",
    "after_run": "after_step(step, loss)",
    "end": "end(step)",
}
_LISTENER_METHODS = {
    "begin": "",
    "before_save": "before_save(step)",
    "after_save": "after_save(step, path)",
    "end": "",
}
_ARGUMENTS = {"context": "self, context", "step": "self, step"}
_ITERATORS = ("make_one_shot_iterator", "make_initializable_iterator")
_OF_LIBRARIES = re.compile(r"(getattr\()?(tf|hvd|horovod|tensorflow|tensorflow_estimator|keras\.estimator)\b")
"""Findings without which all others are of no interest: settings and datasets are in any program."""
_KERAS_2 = {
    "lr": "it is learning_rate in Keras 3",
    "experimental_run_tf_function": "Keras 3 has none",
}
"""Arguments of Keras 2."""


@dataclass(frozen=True)
class Finding:
    """One thing that changes.

    Attributes:
        line: In the program's text, from 1.
        name: Its full name, as `tf.estimator.RunConfig`, or what it is called here, as `TF_CONFIG`.
        text: As the program has it, in one line.
        verdict: What is to be done.
        code: What is written instead; empty: nothing.
        notes: What else has to be known, a sentence each.
    """

    line: int
    name: str
    text: str
    verdict: Verdict
    code: str = ""
    notes: tuple[str, ...] = ()


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
            yield from self._imports(node)
        elif isinstance(node, ast.ClassDef):
            yield from self._class(node)
        elif isinstance(node, ast.FunctionDef):
            yield from self._function(node)
        elif isinstance(node, ast.Expr | ast.Assign) and self._pins_a_gpu(node):
            self._settle(node)
            why = "each rank sees the GPU of its own alone before TensorFlow starts; leave the statement out"
            yield self._finding(node, "GPU by local rank", Verdict.DROPPED, notes=(why,))
        elif isinstance(node, ast.Compare) and is_chief_test(node, self._names):
            self._settle(node)
            why = (
                "checkpoints, exports, logs and summaries are written by rank 0 without a test; ht.is_chief() is for "
                "what else one rank alone does, and nothing that ranks do together may be below it"
            )
            yield self._finding(node, "hvd.rank", Verdict.REPLACED, self._code(node), (why,))
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Attribute | ast.Name):
            yield from self._reference(node)
        elif isinstance(node, ast.Constant) and node.value == "TF_CONFIG":
            yield self._finding(node, "TF_CONFIG", Verdict.DROPPED, notes=(_TF_CONFIG,))

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
        for module in modules:
            if module.startswith("horovod") and isinstance(node, ast.ImportFrom):
                yield from self._from_horovod(node)
            elif module in _MODULES:
                alias = next((alias.asname for alias in node.names if alias.name == module), None)
                code = f"import {_MODULES[module]}" + (f" as {alias}" if alias else "")
                yield self._finding(node, module, Verdict.REPLACED, code, (IMPORT_NOTE,))
            elif module.partition(".")[2].partition(".")[0] in _OUT_OF_SCOPE and module.startswith("horovod."):
                why = _OUT_OF_SCOPE[module.split(".")[1]]
                yield self._finding(node, module, Verdict.MISSING, notes=(why,))
        if node.lineno in self._names.stars:
            module = self._names.stars[node.lineno]
            if module.split(".")[0] in ("tensorflow", "tensorflow_estimator", "horovod"):
                why = "names of `import *` are not followed; import them by name, and run `hpc-train migrate` again"
                yield self._finding(node, f"{module}.*", Verdict.MISSING, notes=(why,))

    def _from_horovod(self, node: ast.ImportFrom) -> Iterator[Finding]:
        module = str(node.module)
        for alias in node.names:
            whole = f"{module}.{alias.name}"
            kind = whole.split(".")[1]
            if kind in _OUT_OF_SCOPE:
                yield self._finding(node, whole, Verdict.MISSING, notes=(_OUT_OF_SCOPE[kind],))
            elif whole in _MODULES or module in _MODULES:
                target = _MODULES.get(module) or f"hpc_train.{module}"
                code = f"from {target} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                yield self._finding(node, whole, Verdict.REPLACED, code, (IMPORT_NOTE,))

    def _class(self, node: ast.ClassDef) -> Iterator[Finding]:
        for base in node.bases:
            name = self._names.resolve(base)
            row = row_of(name)
            if row is None or row.name not in ("tf.train.SessionRunHook", "tf.train.CheckpointSaverListener"):
                continue
            self._settled.add(id(base))
            methods = _SESSION_METHODS if row.name.endswith("Hook") else _LISTENER_METHODS
            own = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            heads = dict.fromkeys(methods[each] for each in own if methods.get(each))
            defs = [f"    def {head.replace('(', '(self, ')}: ..." for head in heads]
            code = "\n".join([f"class {node.name}({row.code}):", *(defs or ["    ..."])])
            notes = [row.why]
            if "after_run" in own or "before_run" in own:
                notes.append(
                    "no tensors are fetched: after_step has the loss, and context.model of begin the variables"
                )
            text = f"class {node.name}({ast.unparse(base)})"
            yield Finding(node.lineno, row.name, text, Verdict.REPLACED, code, tuple(notes))

    def _function(self, node: ast.FunctionDef) -> Iterator[Finding]:
        arguments = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
        text = f"def {node.name}({', '.join(arguments)})"
        if {"features", "labels", "mode"} <= set(arguments):
            self._in_models |= {id(inner) for inner in ast.walk(node)}
            head = "params" if "params" in arguments else ""
            code = f"def {node.name}({head}):\n    ...\n    model.compile(optimizer, loss, metrics)\n    return model"
            why = "it makes and compiles a Keras model; features and labels come from input_fn (docs/estimator.md)"
            yield Finding(node.lineno, "model_fn", text, Verdict.REPLACED, code, (why,))
            return
        if not is_input_function(node):
            return
        notes = ["tf.data works as before; batches are `x`, `(x, y)` or `(x, y, sample_weight)`"]
        defaults = len(node.args.defaults)
        needed = arguments[: len(arguments) - defaults] if defaults else arguments
        foreign = [each for each in needed if each not in ("context", "input_context", "self")]
        if foreign:
            notes.append(
                f"its one argument may be an ht.InputContext; functools.partial or a lambda gives {', '.join(foreign)}"
            )
        if any(isinstance(each, ast.Attribute) and each.attr in _ITERATORS for each in ast.walk(node)):
            notes.append("return the dataset itself, without an iterator")
        code = f"lambda: {node.name}({', '.join(foreign)})" if foreign else ""
        yield Finding(node.lineno, "input_fn", text, Verdict.KEPT, code, tuple(notes))

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
            yield self._finding(node, "Dataset.shard", Verdict.REPLACED, self._code(node), (why,))
            return
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and node.args:
            name = self._names.resolve(node.args[0])
            if name is not None and name.split(".")[0] in ("tf", "hvd"):
                why = "a name that getattr looks up is not followed; write it out, and run `hpc-train migrate` again"
                yield self._finding(node, f"getattr({name}, …)", Verdict.MISSING, notes=(why,))
            return
        name = self._names.called(node)
        row = row_of(name, id(node) in self._in_models)
        if name is not None and row is not None:
            if name.startswith(f"{ESTIMATOR}.") and row.name.endswith("*"):
                return
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
        return self._finding(node, name, row.verdict, code, tuple(notes))

    def _reference(self, node: ast.Attribute | ast.Name) -> Iterator[Finding]:
        if isinstance(node, ast.Attribute) and node.attr in ("eval_dir", "model_dir"):
            if self._names.kind(node.value) == ESTIMATOR:
                row = row_of(f"{ESTIMATOR}.eval_dir")
                assert row is not None
                yield self._finding(node, f"{ESTIMATOR}.{node.attr}", row.verdict, notes=(row.why,))
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
        yield self._finding(node, name, row.verdict, "" if code == ast.unparse(node) else code, notes)

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
        return self._finding(flag.node, f"setting {flag.name}", verdict, code, (why,))

    def _keras_2(self, node: ast.Call, name: str | None) -> Iterator[Finding]:
        is_compile = isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
        for keyword in node.keywords:
            of_optimizer = keyword.arg == "lr" and (name or "").startswith("keras.optimizers.")
            if of_optimizer or (is_compile and keyword.arg == "experimental_run_tf_function"):
                assert keyword.arg is not None
                why = _KERAS_2[keyword.arg]
                code = self._code(node) if of_optimizer else ""
                yield self._finding(node, f"argument {keyword.arg}", Verdict.REPLACED if code else Verdict.DROPPED,
                                    code, (why,))  # fmt: skip

    def _pins_a_gpu(self, node: ast.AST) -> bool:
        inner = list(ast.walk(node))
        words = {getattr(each, "attr", getattr(each, "id", "")) for each in inner}
        words |= {each.arg for each in inner if isinstance(each, ast.keyword) and each.arg}
        words |= {each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        pins = words & {"set_visible_devices", "visible_device_list", "CUDA_VISIBLE_DEVICES"}
        return bool(pins) and any(self._names.called(each) == "hvd.local_rank" for each in inner)

    def _finding(
        self, node: ast.AST, name: str, verdict: Verdict, code: str = "", notes: tuple[str, ...] = ()
    ) -> Finding:
        return Finding(getattr(node, "lineno", 1), name, ast.unparse(node), verdict, code, notes)

    def _code(self, node: ast.expr) -> str:
        translator = self._of_models if id(node) in self._in_models else self._translator
        return "\n".join(laid_out(translator.translated(node), WIDTH))

    def _settle(self, node: ast.AST) -> None:
        self._settled |= {id(inner) for inner in ast.walk(node)}


def is_input_function(node: ast.FunctionDef) -> bool:
    """Whether a function is an input_fn, by its name, or by a tf.data.Dataset that it begins with and returns."""
    return "input_fn" in node.name or "dataset" in node.name.lower()

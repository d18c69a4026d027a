"""What imports, classes and functions of a program become. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hpc_train.migration.counterparts.horovod import IMPORT_NOTE, MXNET, SPARK, TORCH
from hpc_train.migration.counterparts.row import Verdict
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.finding import Finding, finding_at
from hpc_train.migration.names import Names

_MODULES = {
    "horovod.tensorflow": "hpc_train.horovod.tensorflow",
    "horovod.tensorflow.keras": "hpc_train.horovod.tensorflow.keras",
    "horovod.keras": "hpc_train.horovod.keras",
}
_OUT_OF_SCOPE = {"torch": TORCH, "mxnet": MXNET, "spark": SPARK, "ray": SPARK}
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
_ITERATORS = ("make_one_shot_iterator", "make_initializable_iterator")


def of_imports(node: ast.Import | ast.ImportFrom, names: Names) -> Iterator[Finding]:
    """Horovod's modules, and names that are not followed."""
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
    for module in modules:
        if module.startswith("horovod") and isinstance(node, ast.ImportFrom):
            yield from _from_horovod(node)
        elif module in _MODULES:
            alias = next((alias.asname for alias in node.names if alias.name == module), None)
            code = f"import {_MODULES[module]}" + (f" as {alias}" if alias else "")
            yield finding_at(node, module, Verdict.REPLACED, code, (IMPORT_NOTE,))
        elif module.partition(".")[2].partition(".")[0] in _OUT_OF_SCOPE and module.startswith("horovod."):
            why = _OUT_OF_SCOPE[module.split(".")[1]]
            yield finding_at(node, module, Verdict.MISSING, notes=(why,))
    if node.lineno in names.stars:
        module = names.stars[node.lineno]
        if module.split(".")[0] in ("tensorflow", "tensorflow_estimator", "horovod"):
            why = "names of `import *` are not followed; import them by name, and run `hpc-train migrate` again"
            yield finding_at(node, f"{module}.*", Verdict.MISSING, notes=(why,))


def _from_horovod(node: ast.ImportFrom) -> Iterator[Finding]:
    module = str(node.module)
    for alias in node.names:
        whole = f"{module}.{alias.name}"
        kind = whole.split(".")[1]
        if kind in _OUT_OF_SCOPE:
            yield finding_at(node, whole, Verdict.MISSING, notes=(_OUT_OF_SCOPE[kind],))
        elif whole in _MODULES or module in _MODULES:
            target = _MODULES.get(module) or f"hpc_train.{module}"
            code = f"from {target} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
            yield finding_at(node, whole, Verdict.REPLACED, code, (IMPORT_NOTE,))


def of_class(node: ast.ClassDef, names: Names) -> Iterator[Finding]:
    """Hooks and listeners."""
    for base in node.bases:
        name = names.resolve(base)
        row = row_of(name)
        if row is None or row.name not in ("tf.train.SessionRunHook", "tf.train.CheckpointSaverListener"):
            continue
        methods = _SESSION_METHODS if row.name.endswith("Hook") else _LISTENER_METHODS
        own = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
        heads = dict.fromkeys(methods[each] for each in own if methods.get(each))
        defs = [f"    def {head.replace('(', '(self, ')}: ..." for head in heads]
        code = "\n".join([f"class {node.name}({row.code}):", *(defs or ["    ..."])])
        notes = [row.why]
        if "after_run" in own or "before_run" in own:
            notes.append("no tensors are fetched: after_step has the loss, and context.model of begin the variables")
        text = f"class {node.name}({ast.unparse(base)})"
        yield Finding(node.lineno, row.name, text, Verdict.REPLACED, code, tuple(notes))


def of_function(node: ast.FunctionDef) -> Iterator[Finding]:
    """A model function, or one that by its name gives the input."""
    arguments = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    text = f"def {node.name}({', '.join(arguments)})"
    if is_model_function(node):
        head = "params" if "params" in arguments else ""
        code = f"def {node.name}({head}):\n    ...\n    model.compile(optimizer, loss, metrics)\n    return model"
        why = "it makes and compiles a Keras model; features and labels come from input_fn (docs/estimator.md)"
        yield Finding(node.lineno, "model_fn", text, Verdict.REPLACED, code, (why,))
        return
    if "input_fn" not in node.name and "dataset" not in node.name.lower():
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


def is_model_function(node: ast.FunctionDef) -> bool:
    """Whether it has the arguments of a model function of Estimator."""
    return {"features", "labels", "mode"} <= {arg.arg for arg in node.args.args}

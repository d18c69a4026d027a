"""Writes docs/api.md, every public name with its signature and docstring; `make docs-api` runs it."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
WIDTH = 120

HEAD = """\
# The Python API

`import hpc_train as ht` has these names, and imports TensorFlow, Keras and MPI when they are needed. `ht.LARS` and
`ht.WarmUp` are Keras objects, which import both.

Arguments are checked where they are given, before TensorFlow starts. What is wrong, of an unknown, missing or retired
argument and of each value, is raised as one `ht.UserError`, which is a `ValueError`; its message has a line for each
mistake: class, argument, value, what is allowed, and the nearest name or the way on. Arguments of Estimator that are
none here are listed with the class that refuses them; [estimator.md](estimator.md) shows how its model function is
written here.

<!-- Made from the docstrings by `make docs-api`. -->
"""
REDUCERS = ("Sum", "Mean", "Moments", "MinMax", "Histogram", "Quantiles", "Vocabulary", "TopK", "Custom", "Reducer")
COLUMNS = (
    "numeric_column",
    "bucketized_column",
    "categorical_column_with_vocabulary_list",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "crossed_column",
    "indicator_column",
    "embedding_column",
)
PARALLEL = ("ColumnDense", "RowDense", "MultiHeadAttention", "Embedding", "Dropout", "ShardedEmbedding")
GROUPS = {
    "Training": ["train_and_evaluate", "Estimator", "RunConfig", "TrainSpec", "EvalSpec"],
    "Canned estimators": [
        "LinearClassifier",
        "LinearRegressor",
        "DNNClassifier",
        "DNNRegressor",
        "DNNLinearCombinedClassifier",
        "DNNLinearCombinedRegressor",
    ],
    "Feature columns": [f"feature_column.{name}" for name in COLUMNS],
    "In a model": ["all_gather"],
    "Models larger than a rank": [f"parallel.{name}" for name in PARALLEL],
    "Built-in models": ["builtin_model"],
    "Data": ["HDF5Input", "InputContext"],
    "Studies": ["tune", "ensemble"],
    "Exports": ["FinalExporter", "LatestExporter", "BestExporter", "load_exported_model"],
    "Early stopping": ["stop_if_no_decrease", "stop_if_no_increase", "stop_if_lower", "stop_if_higher"],
    "Hooks": ["Hook", "HookContext", "SavingListener"],
    "Initial weights": ["WarmStartSettings"],
    "Statistics": ["map_reduce", "adapt", "Table"],
    "Reducers": [f"reducers.{name}" for name in REDUCERS],
    "Big batches": ["WarmUp", "LARS", "scaled_learning_rate"],
    "Ranks": ["launched_ranks", "is_chief"],
    "Jobs": ["JobConfig", "load_job", "submit", "Job"],
    "Errors": ["UserError", "RankError", "JobEndedError", "SchedulerError"],
}


def page() -> str:
    """What docs/api.md is to hold."""
    import hpc_train as ht

    named = [name for names in GROUPS.values() for name in names]
    modules = ("feature_column", "parallel", "reducers")
    public = {*ht.__all__, *(f"{m}.{name}" for m in modules for name in getattr(ht, m).__all__)} - {*modules}
    assert set(named) == public, set(named) ^ public
    parts = [HEAD, *(_wrapped(f"{title}: {', '.join(map(_link, names))}") for title, names in GROUPS.items()), ""]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _entry(name, attrgetter(name)(ht))
    return "\n".join(parts).rstrip() + "\n"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower().replace('.', '')})"


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not (isinstance(thing, type) and issubclass(thing, Exception)):
        yield _signature(name, thing) + "\n"
    yield _described(thing)
    if retired := getattr(thing, "retired", None):
        yield "Arguments of tf.estimator that are refused:\n"
        yield "\n".join(_wrapped(f"`{old}`: {way}.") for old, way in retired.items()) + "\n"
    if isinstance(thing, type):
        for own, member in vars(thing).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if own.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
                continue
            yield f"#### {name}.{own}\n"
            yield ("A property." if isinstance(member, property) else _signature(own, getattr(thing, own))) + "\n"
            yield _described(function)


def _signature(name: str, thing: Callable[..., Any]) -> str:
    signature = inspect.signature(thing)
    try:
        hints = typing.get_type_hints(thing if isinstance(thing, type) else inspect.unwrap(thing))
        if isinstance(thing, type) and not set(signature.parameters) <= set(hints):
            hints = typing.get_type_hints(inspect.unwrap(thing.__init__))  # type: ignore[misc]
    except NameError:  # of what is imported for the types alone
        hints = {}
    parameters, star = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parameters, star = [*parameters, "*"], True
        hint = hints.get(parameter.name, parameter.annotation)
        text = parameter.name + ("" if hint is parameter.empty else f": {_type(hint)}")
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default, hint)}"
        parameters.append(text)
    returned = hints.get("return", signature.return_annotation)
    to = "" if isinstance(thing, type) or returned is signature.empty else f" -> {_type(returned)}"
    line = f"{name}({', '.join(parameters)}){to}"
    if len(line) + 4 > WIDTH:
        line = "\n".join([f"{name}(", *(f"    {text}," for text in parameters), f"){to}"])
    return textwrap.indent(line, "    ")


def _default(value: Any, hint: Any) -> str:
    if repr(value) == "<factory>":
        return "{}" if typing.get_origin(hint) in (dict, Mapping) else f"{_type(hint)}()"
    return "…" if inspect.isfunction(value) else repr(value)


def _type(hint: Any) -> str:
    """A type as it is written, alike whatever the version of Python."""
    if isinstance(hint, str):
        return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", hint)
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, list):
        return f"[{', '.join(map(_type, hint))}]"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type, args))
    name = "..." if hint is ... else getattr(origin or hint, "__name__", None) or str(hint).rpartition(".")[2]
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    return f"{name}[{', '.join(map(_type, args))}]" if args else name


def _described(thing: Any) -> str:
    """A docstring as Markdown: its sections become lists; formulas stay."""
    lines, found = (inspect.getdoc(thing) or "").splitlines(), []
    in_list = False
    for line in lines:
        text = line.strip()
        if re.fullmatch(r"(Args|Attributes|Raises):", text) and line == text:
            in_list = True
            found.append(f"{text}\n")
        elif in_list and line.startswith("    ") and text:
            if line.startswith("        ") and not found[-1].endswith("\n"):
                found[-1] += f" {text}"
            else:
                found.append(re.sub(r"^(\w+(?:, \w+)*): ", lambda m: f"{_code(m[1])}: ", text))
                found[-1] = f"- {found[-1]}"
        else:
            in_list = in_list and not text
            found.append(line)
    found = [line if line.startswith("    ") else re.sub(r"<(?=\w)", r"\\<", line) for line in found]
    return "\n".join(_wrapped(line[2:]) if line.startswith("- ") else line for line in found) + "\n"


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page())

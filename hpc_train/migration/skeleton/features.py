"""What a model takes: the features that a model function reads, and those of its feature columns. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpc_train.migration.source import Source
from hpc_train.migration.values import UNKNOWN

INPUTS = ("tf.feature_column.input_layer", "keras.layers.DenseFeatures")
"""What joins the features of columns to one tensor."""


@dataclass(frozen=True)
class Features:
    """The inputs of a model.

    Attributes:
        shapes: Of a row of each feature, by name; one feature called "" is a tensor.
        texts: Those that are texts.
        remarks: What is left to be done.
    """

    shapes: dict[str, tuple[int, ...]]
    texts: frozenset[str] = frozenset()
    remarks: list[str] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Of features in a dict; empty: a tensor."""
        return tuple(name for name in self.shapes if name)

    def lines(self) -> list[str]:
        """The code of the inputs, called `features`."""
        if not self.names:
            return [f"features = keras.Input({self.shapes['']})"]
        inputs = (
            f"{name!r}: keras.Input({shape}{self._dtype(name)}, name={name!r})" for name, shape in self.shapes.items()
        )
        return ["features = {", *(f"    {each}," for each in inputs), "}"]

    def joined(self) -> str:
        """The code of one tensor of all of them."""
        if not self.names:
            return "features"
        if len(self.names) == 1:
            return f"features[{self.names[0]!r}]"
        return "keras.ops.concatenate(list(features.values()), axis=-1)"

    def _dtype(self, name: str) -> str:
        return ', dtype="string"' if name in self.texts else ""


def features_of(source: Source, function: ast.FunctionDef) -> Features:
    """Those that a model function reads as `features["name"]`; else those of numeric columns; else one tensor."""
    names: dict[str, None] = {}
    for node in ast.walk(function):
        if _is_feature(node, None):
            assert isinstance(node, ast.Subscript)
            name = source.values.of(node.slice)
            if isinstance(name, str):
                names[name] = None
    columns = dict(numeric_columns(source))
    shapes: dict[str, tuple[int, ...]] = dict(columns) if not names else {}
    remarks = []
    for name in names if shapes or names else ("",):
        shape = columns.get(name) or _shape(source, function, name)
        if shape is None:
            remarks.append(f"the shape of a row of {name or 'the features'}: (1,) is a guess")
        shapes[name] = shape or (1,)
    if any(source.names.called(node) in INPUTS for node in ast.walk(function)):
        remarks.append("only numeric columns are joined here; encode the others by keras.layers")
    return Features(shapes, remarks=remarks)


def numeric_columns(source: Source) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of a program's numeric columns."""
    for node in ast.walk(source.program.tree):
        if source.names.called(node) != "tf.feature_column.numeric_column":
            continue
        assert isinstance(node, ast.Call)
        given = {"key": node.args[0] if node.args else None, "shape": node.args[1] if len(node.args) > 1 else None}
        given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg in given}
        key = source.values.of(given["key"])
        if isinstance(key, str):
            yield key, as_shape(source.values.of(given["shape"])) or (1,)


def as_shape(value: object) -> tuple[int, ...] | None:
    """A shape that a program gives: a number, or several above 0; None: it is none."""
    sizes = value if isinstance(value, list) else [value]
    if value is UNKNOWN or not sizes or not all(type(size) is int and size > 0 for size in sizes):
        return None
    return tuple(sizes)


def _shape(source: Source, function: ast.FunctionDef, name: str) -> tuple[int, ...] | None:
    """That of a row of a feature, where it is reshaped to one that the text shows; None else."""
    for node in ast.walk(function):
        if source.names.called(node) != "tf.reshape":
            continue
        assert isinstance(node, ast.Call)
        if len(node.args) == 2 and (_is_feature(node.args[0], name, source) if name else _is_features(node.args[0])):
            sizes = source.values.of(node.args[1])
            if isinstance(sizes, list) and (shape := as_shape(sizes[1:])) is not None:
                return shape
    return None


def _is_features(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "features"


def _is_feature(node: ast.AST, name: str | None, source: Source | None = None) -> bool:
    """Whether it is `features[…]`, of that name."""
    if not isinstance(node, ast.Subscript) or not _is_features(node.value):
        return False
    return name is None or source is None or source.values.of(node.slice) == name

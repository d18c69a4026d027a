"""A Keras model in the place of a canned estimator: its feature columns as layers, its hidden units, its loss. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from hpc_train.migration.counterparts.row import Counterpart, write
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.replacement import Translator, arguments_of
from hpc_train.migration.skeleton.features import Features, as_shape
from hpc_train.migration.skeleton.model_code import MODULES, ModelCode, ModelTranslator, model_code
from hpc_train.migration.skeleton.slice import loaded, slice_of, statements_before
from hpc_train.migration.source import Source

_COLUMN = "tf.feature_column."
_LAYERS: dict[str, Counterpart] = {
    row.name: row
    for row in (
        write("numeric_column", "features[key]", "key *"),
        write("bucketized_column", "keras.layers.Discretization(boundaries, output_mode='one_hot')(features[key])",
              "key boundaries *"),
        write("categorical_column_with_vocabulary_list",
              "keras.layers.StringLookup(vocabulary=vocabulary_list, output_mode='multi_hot')(features[key])",
              "key vocabulary_list *"),
        write("categorical_column_with_vocabulary_file",
              "keras.layers.StringLookup(vocabulary=vocabulary_file, output_mode='multi_hot')(features[key])",
              "key vocabulary_file *"),
        write("categorical_column_with_hash_bucket",
              "keras.layers.Hashing(hash_bucket_size, output_mode='multi_hot')(features[key])",
              "key hash_bucket_size *"),
        write("categorical_column_with_identity",
              "keras.layers.CategoryEncoding(num_buckets, output_mode='multi_hot')(features[key])",
              "key num_buckets *"),
        write("crossed_column", "keras.layers.HashedCrossing(hash_bucket_size, output_mode='one_hot')(keys)",
              "keys hash_bucket_size *"),
        write("indicator_column", "categorical_column", "categorical_column *"),
        write("embedding_column", "keras.layers.Dense(dimension, use_bias=False)(categorical_column)",
              "categorical_column dimension *"),
    )
}  # fmt: skip
"""Layers that do what each feature column did, one a row; an embedding of words is a Dense layer of their bits."""
_EMBEDDED: dict[str, Counterpart] = {
    row.name: row
    for row in (
        write("categorical_column_with_hash_bucket",
              "keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(hash_bucket_size, dimension)"
              "(keras.layers.Hashing(hash_bucket_size)(features[key])))", "key hash_bucket_size dimension *"),
        write("categorical_column_with_identity",
              "keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(num_buckets, dimension)(features[key]))",
              "key num_buckets dimension *"),
        write("crossed_column",
              "keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(hash_bucket_size, dimension)"
              "(keras.layers.HashedCrossing(hash_bucket_size)(keys)))", "keys hash_bucket_size dimension *"),
    )
}  # fmt: skip
"""The same of an embedding of numbers: the mean over the values of a row, as by the combiner of TensorFlow."""
_USED = frozenset((
    "activation_fn", "config", "dnn_activation_fn", "dnn_dropout", "dnn_feature_columns", "dnn_hidden_units",
    "dnn_optimizer", "dropout", "feature_columns", "hidden_units", "label_dimension", "linear_feature_columns",
    "linear_optimizer", "model_dir", "n_classes", "optimizer", "warm_start_from",
))  # fmt: skip
"""Arguments of estimators that model.py or job.yaml has."""
_COLUMN_USED = frozenset(("categorical_column", "dtype", "key", "shape", "source_column"))
_KINDS = {
    "Classifier": "keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    "Regressor": "keras.losses.MeanSquaredError()",
}
_TREES = "boosted trees are `model: {builtin: gbdt}` of a table's shards: this is a linear model of the same columns"
_MOST_COLUMNS = 1000
_MAX_DEPTH = 20


def canned_model(source: Source) -> ModelCode | None:
    """A model like the program's first canned estimator; None: there is no such estimator."""
    for node in ast.walk(source.program.tree):
        name = source.names.called(node) or ""
        ending = next((ending for ending in _KINDS if name.startswith("tf.") and name.endswith(ending)), None)
        if ending is not None and isinstance(node, ast.Call) and row_of(name) is not None:
            made = _Canned(source)
            lines = made.lines(node, name, ending)
            own = ast.parse("\n".join(lines)).body
            bound = {each.id for each in ast.walk(ast.Module(own, [])) if isinstance(each, ast.Name)
                     and isinstance(each.ctx, ast.Store)}  # fmt: skip
            wanted = {each for statement in own for each in loaded(statement)} - bound - MODULES.keys()
            before, functions = statements_before(source.program.tree, node)
            body, free = slice_of(before, wanted, ModelTranslator(source))
            return model_code(source, [*body, *own], free, functions, made.features(), made.remarks)
    return None


class _Canned:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._translator = Translator(source.names, source.values.flags)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._texts: set[str] = set()
        self.remarks: list[str] = []

    def features(self) -> Features:
        return Features(self._shapes or {"x": (1,)}, frozenset(self._texts))

    def lines(self, call: ast.Call, name: str, ending: str) -> list[str]:
        given = self._given(call, name)
        self._unused(given.keys() - _USED, name, row_of(name))
        columns = self._columns(given.get("dnn_feature_columns", given.get("feature_columns")))
        linear = self._columns(given.get("linear_feature_columns"))
        hidden = given.get("dnn_hidden_units", given.get("hidden_units"))
        if "BoostedTrees" in name:
            self._remark(_TREES)
        if not columns + linear:
            self.remarks.append("no feature columns were found; take what the rows have")
            self._shapes = {"x": (1,)}
            columns = ["features['x']"]
        classes = self._source.values.of(given.get("n_classes"))
        units = self._source.values.of(given.get("label_dimension"))
        outputs = classes if isinstance(classes, int) and ending == "Classifier" else 2
        outputs = outputs if ending == "Classifier" else units if isinstance(units, int) else 1
        rows = self.features().lines()
        parts = []
        if columns:
            rows += _block("deep", columns)
            parts.append("deep")
        if hidden is not None and columns:
            rows += self._hidden(hidden, given)
        if linear:
            rows += _block("wide", linear)
            parts.append("wide")
        rows.append("logits = " + " + ".join(f"keras.layers.Dense({outputs})({part})" for part in parts))
        rows += [
            "model = keras.Model(features, logits)",
            f"model.compile(optimizer={self._optimizer(given)}, loss={_KINDS[ending]}"
            + (", metrics=['accuracy'])" if ending == "Classifier" else ")"),
        ]
        if "linear_optimizer" in given and "dnn_optimizer" in given:
            self.remarks.append("linear and deep parts have one optimizer here")
        return rows

    def _given(self, call: ast.Call, name: str) -> dict[str, ast.expr]:
        row = row_of(name)
        assert row is not None
        given = arguments_of(call, row).given
        if not row.signature and call.args:
            given["feature_columns"] = call.args[0]
        for value in call.keywords:  # **kwargs that the program assigns once
            if value.arg is None and isinstance(whole := self._source.values.constant(value.value), ast.Dict):
                pairs = zip(whole.keys, whole.values, strict=True)
                given |= {k.value: v for k, v in pairs if isinstance(k, ast.Constant) and isinstance(k.value, str)}
        return given

    def _hidden(self, hidden: ast.expr, given: dict[str, ast.expr]) -> list[str]:
        activation = given.get("activation_fn", given.get("dnn_activation_fn"))
        shown = "'relu'" if activation is None else self._translator.code(activation)
        dropout = given.get("dropout", given.get("dnn_dropout"))
        rows = [
            f"for units in {self._translator.code(hidden)}:",
            f"    deep = keras.layers.Dense(units, {shown})(deep)",
        ]
        if dropout is not None and self._source.values.of(dropout) is not None:
            rows.append(f"    deep = keras.layers.Dropout({self._translator.code(dropout)})(deep)")
        return rows

    def _optimizer(self, given: dict[str, ast.expr]) -> str:
        for name in ("dnn_optimizer", "optimizer", "linear_optimizer"):
            value = given.get(name)
            if value is None:
                continue
            text = self._translator.code(value)
            if text.startswith("keras.optimizers.") or isinstance(self._source.values.of(value), str):
                return text
            self._remark(f"{name}: {ast.unparse(value)[:60]} is no optimizer of Keras; Adagrad stands here")
        return "keras.optimizers.Adagrad(0.05)"

    def _columns(self, node: ast.AST | None) -> list[str]:
        return [code for column in self._each(node) if (code := self._code(column, 0))]

    def _each(self, node: ast.AST | None, depth: int = 0) -> Iterator[ast.AST]:
        """The columns of a list, as far as the text shows it."""
        node = node and self._source.values.constant(node)
        if node is None or depth > _MAX_DEPTH:
            return
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            for item in node.elts[:_MOST_COLUMNS]:
                yield from self._each(item.value if isinstance(item, ast.Starred) else item, depth + 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self._each(node.left, depth + 1)
            yield from self._each(node.right, depth + 1)
        elif self._column(node) is not None:
            yield node
        elif isinstance(node, ast.ListComp) and len(node.generators) == 1:
            yield from self._comprehended(node)
        else:
            self._remark(f"the columns of {ast.unparse(node)[:60]} are not known here; add them")

    def _column(self, node: ast.AST) -> Counterpart | None:
        """The row of a feature column, also of one of tf.contrib; None: it is none."""
        row = row_of(self._source.names.called(node))
        return row if row is not None and row.name.startswith(_COLUMN) else None

    def _comprehended(self, node: ast.ListComp) -> Iterator[ast.AST]:
        """`[numeric_column(name) for name in NAMES]`."""
        loop = node.generators[0]
        names = self._source.values.of(loop.iter)
        if not isinstance(names, list) or not isinstance(loop.target, ast.Name) or loop.ifs:
            self._remark(f"the columns of {ast.unparse(node)[:60]} are not known here; add them")
            return
        for name in names[:_MOST_COLUMNS]:
            yield _Named(loop.target.id, name).visit(ast.parse(ast.unparse(node.elt), mode="eval").body)

    def _code(self, node: ast.AST, depth: int, dimension: ast.expr | None = None) -> str:
        """The code of one column's layer, embedded where there is a dimension; empty where there is none."""
        node = self._source.values.constant(node)
        signature = self._column(node)
        name = "" if signature is None else signature.name.removeprefix(_COLUMN)
        row = _LAYERS.get(name) if dimension is None else _EMBEDDED.get(name)
        if row is None or signature is None or not isinstance(node, ast.Call) or depth > _MAX_DEPTH:
            self._remark(f"{ast.unparse(node)[:60]} has no layer here; add it")
            return ""
        given = arguments_of(node, signature).given
        self._unused(given.keys() - _COLUMN_USED - set(row.signature.split()), ast.unparse(node), signature)
        if dimension is not None:
            given["dimension"] = dimension
        values: dict[str, str] = {key: self._translator.code(value) for key, value in given.items()}
        if name == "bucketized_column":
            column = self._source.values.constant(given.get("source_column", ast.Constant(None)))
            inner = row_of(self._source.names.called(column))
            source = arguments_of(column, inner).given if inner is not None and isinstance(column, ast.Call) else {}
            values["key"] = self._read(source.get("key"), False, column)
        elif name == "crossed_column":
            values["keys"] = self._crossed(given.get("keys"), depth)
        elif name == "embedding_column" and self._is_embedded(given.get("categorical_column")):
            return self._code(given["categorical_column"], depth + 1, given.get("dimension", ast.Constant(...)))
        elif "categorical_column" in values:
            values["categorical_column"] = self._code(given["categorical_column"], depth + 1)
        else:
            is_text = name == "categorical_column_with_hash_bucket" or "vocabulary" in name
            values["key"] = self._read(given.get("key"), is_text and not self._holds_numbers(given), node)
        if "" in values.values():
            return ""
        template = row.code.replace("StringLookup", "IntegerLookup") if self._holds_numbers(given) else row.code
        return ast.unparse(_Filled(values).visit(ast.parse(template, mode="eval").body))

    def _is_embedded(self, column: ast.expr | None) -> bool:
        row = self._column(self._source.values.constant(column)) if column is not None else None
        return row is not None and row.name.removeprefix(_COLUMN) in _EMBEDDED

    def _crossed(self, keys: ast.AST | None, depth: int) -> str:
        columns = []
        node = keys and self._source.values.constant(keys)
        for item in node.elts if isinstance(node, ast.List | ast.Tuple) else ():
            name = self._source.values.of(item)
            if isinstance(name, str):
                columns.append(f"features[{self._read(item, True, item)}]")
            else:
                columns.append("")
        if not columns or "" in columns:
            self._remark("columns that cross others than names have no layer here; add them")
            return ""
        return f"({', '.join(columns)})"

    def _read(self, key: ast.AST | None, is_text: bool, column: ast.AST) -> str:
        """The name of a feature, which becomes an input."""
        name = self._source.values.of(key)
        if not isinstance(name, str):
            self._remark(f"the feature of {ast.unparse(column)[:60]} is not known here; add it")
            return ""
        shape: tuple[int, ...] = (1,)
        if isinstance(column, ast.Call) and (row := row_of(self._source.names.called(column))) is not None:
            arguments = arguments_of(column, row).given
            shape = as_shape(self._source.values.of(arguments.get("shape", arguments.get("dimension")))) or (1,)
        self._shapes.setdefault(name, shape)
        if is_text:
            self._texts.add(name)
        return repr(name)

    def _holds_numbers(self, given: dict[str, ast.expr]) -> bool:
        words: Any = self._source.values.of(given.get("vocabulary_list"))
        return isinstance(words, list) and words != [] and all(isinstance(word, int) for word in words)

    def _unused(self, names: Iterable[str], of: str, row: Counterpart | None) -> None:
        """Arguments that no layer here stands for; those of `row` are arguments of this package's estimator, too."""
        if row is None or not row.code.startswith("ht."):
            return
        ours = row.code.partition("(")[0]
        for name in sorted(names):
            why = row.gone.get(name) or f"not in this model; {ours}, as the report writes it, takes it"
            self._remark(f"{name} of {of[:60]}: {why}")

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)


def _block(name: str, columns: list[str]) -> list[str]:
    """Columns joined to one tensor called `name`."""
    if len(columns) == 1:
        return [f"{name} = {columns[0]}"]
    return [f"{name} = keras.layers.Concatenate()([", *(f"    {column}," for column in columns), "])"]


class _Filled(ast.NodeTransformer):
    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(self._values[node.id], mode="eval").body if node.id in self._values else node


class _Named(ast.NodeTransformer):
    """A value in the place of a variable."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(self._value) if node.id == self._name else node

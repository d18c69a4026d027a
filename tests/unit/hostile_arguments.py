"""Calls public names with arguments that no user should give, and prints what is wrong with the answers; a program."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import hpc_train as ht

FOREIGN = re.compile(r"validation error|[Ii]nput should|\btype=|pydantic|[Ff]ield required|[Ee]xtra inputs|Traceback")
LONGEST = 6000
"""Of a line: a path may fill most of it."""


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


HOSTILE: list[Any] = [
    *(
        object(),
        Unprintable(),
        object,
        len,
        print,
        lambda a, b, c: 0,
        lambda: 0,
        ht,
        b"x",
        "",
        "\0",
        "x" * 100_000,
        "no",
    ),
    *(
        None,
        True,
        -1,
        0,
        10**30,
        1.5,
        math.nan,
        math.inf,
        [],
        [3],
        ["a", "a"],
        {},
        {"a": 1},
        {1: 2},
        (),
        (1, 2, 3),
        {3},
    ),
]


def valid() -> dict[str, dict[str, Any]]:
    """What makes each, of arguments without defaults; and what keeps those that act from acting."""
    data, column = ht.HDF5Input("no-such-*.h5"), ht.feature_column
    age, day = column.numeric_column("age"), column.categorical_column_with_identity("day", 7)
    return {
        "train_and_evaluate": {
            "estimator": ht.Estimator(lambda params: None),
            "train_spec": ht.TrainSpec(data, max_steps=1, hooks=3),
            "eval_spec": ht.EvalSpec(data),
        },
        "Estimator": {"model_fn": lambda params: None},
        **{name: {"feature_columns": [age]} for name in ("LinearClassifier", "LinearRegressor")},
        **{name: {"hidden_units": [3], "feature_columns": [age]} for name in ("DNNClassifier", "DNNRegressor")},
        "DNNLinearCombinedClassifier": {"linear_feature_columns": [age]},
        "DNNLinearCombinedRegressor": {"dnn_feature_columns": [age], "dnn_hidden_units": [3]},
        "feature_column.numeric_column": {"key": "age"},
        "feature_column.bucketized_column": {"source_column": age, "boundaries": [1]},
        "feature_column.categorical_column_with_vocabulary_list": {"key": "a", "vocabulary_list": ["b"]},
        "feature_column.categorical_column_with_vocabulary_file": {"key": "a", "vocabulary_file": __file__},
        "feature_column.categorical_column_with_hash_bucket": {"key": "a", "hash_bucket_size": 3},
        "feature_column.categorical_column_with_identity": {"key": "day", "num_buckets": 7},
        "feature_column.crossed_column": {"keys": ["a", "b"], "hash_bucket_size": 3},
        "feature_column.indicator_column": {"categorical_column": day},
        "feature_column.embedding_column": {"categorical_column": day, "dimension": 3},
        "TrainSpec": {"input_fn": data, "max_steps": 1},
        "EvalSpec": {"input_fn": data},
        "HDF5Input": {"shards": "a"},
        "WarmStartSettings": {"ckpt_to_initialize_from": "a"},
        "stop_if_no_decrease": {"metric_name": "loss", "max_steps_without_decrease": 1},
        "stop_if_no_increase": {"metric_name": "loss", "max_steps_without_increase": 1},
        "stop_if_higher": {"metric_name": "loss", "threshold": 1},
        "stop_if_lower": {"metric_name": "loss", "threshold": 1},
        "scaled_learning_rate": {"base_rate": 0.1, "batch_size": 8},
        "JobConfig": {
            "name": "a",
            "model": "a.py:b",
            "data": {"train": {"shards": "a"}, "eval": {"shards": "b"}},
            "train": {"max_steps": 3},
        },
        "InputContext": {"input_pipeline_id": 0, "num_input_pipelines": 1, "seed": 0},
        "HookContext": dict.fromkeys(("model", "rank", "size", "is_chief", "job_dir", "first_step", "max_steps")),
        "submit": {"job_file": "no-such.yaml"},
        "load_job": {"path": "no-such.yaml"},
        "Job": {"job_dir": "no-such"},
        "map_reduce": {"map_fn": None, "reducer": ht.reducers.Mean(), "source": data},
        "builtin_model": {"name": "dnn"},
        "tune": {"job_file": "no-such.yaml"},
        "ensemble": {"job_file": "no-such.yaml"},
        "load_exported_model": {"folder": "no-such-export"},
        "adapt": {"layer": {"x": 3}, "source": data},
        "reducers.TopK": {"k": 3},
        "reducers.Custom": {"init": list, "add": max, "merge": max},
        "LARS": {},
        "parallel.ColumnDense": {"units": 3},
        "parallel.RowDense": {"units": 3},
        "parallel.MultiHeadAttention": {"num_heads": 3, "key_dim": 3},
        "parallel.Embedding": {"input_dim": 3, "output_dim": 3},
        "parallel.Dropout": {"rate": 0.3},
        "parallel.ShardedEmbedding": {"rows": 3, "width": 3},
        "WarmUp": {"then": 0.1, "warmup_steps": 3},
    }


def calls(name: str, thing: Callable[..., Any]) -> Iterator[tuple[str, Callable[[], Any], bool]]:
    """What is called, and whether it must be refused."""
    given = valid().get(name, {})
    yield "fifty by position", lambda: thing(*range(50)), True
    yield "an unknown one", lambda: thing(**given, no_such_argument=3), True
    for wanted in given:
        has_default = inspect.signature(thing).parameters[wanted].default is not inspect.Parameter.empty
        rest = {key: value for key, value in given.items() if key != wanted}
        yield f"{wanted} missing", lambda rest=rest: thing(**rest), not has_default
    for parameter in inspect.signature(thing).parameters:
        for value in HOSTILE:
            yield f"{parameter} hostile", lambda p=parameter, v=value: thing(**{**given, p: v}), False


def problems(name: str) -> Iterator[str]:
    thing, own = attrgetter(name)(ht), name.rpartition(".")[2]
    for what, call, refused in calls(name, thing):
        try:
            call()
        except ht.UserError as error:
            said = str(error)
            if FOREIGN.search(said) or any(len(line) > LONGEST for line in said.splitlines()):
                yield f"{name}: {what}: {said[:300]}"
            elif not any(
                word in said for word in (own, "cannot be read", "TrainSpec: hooks", "no such shard", "an export is")
            ):
                yield f"{name}: {what}: does not name it: {said[:300]}"
        except BaseException as error:
            yield f"{name}: {what}: {type(error).__name__}: {str(error)[:300]}"
        else:
            if refused:
                yield f"{name}: {what}: accepted"


if __name__ == "__main__":
    found = [problem for name in sys.argv[1:] for problem in problems(name)]
    loaded = sorted({"tensorflow", "keras", "mpi4py", "horovod"} & set(sys.modules))
    print("\n".join([*found, *(f"{module} was imported" for module in loaded)]))

"""What canned estimators call their variables, and how a plain model takes a DNN's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hpc_train.errors import UserError
from hpc_train.warm_start.estimator_names import canonical, dense_pairs

INPUT = "dnn/input_from_feature_columns/input_layer"


def dnn(*layers: str) -> list[str]:
    return [f"dnn/{layer}/{role}" for layer in layers for role in ("kernel", "bias")]


def dense(*names: str, roles: tuple[str, ...] = ("kernel", "bias")) -> list[dict[str, str]]:
    return [{role: f"{name}/{role}" for role in roles} for name in names]


def test_names_are_listed_in_the_order_in_which_the_model_computes() -> None:
    given = [
        "linear/linear_model/bias_weights",
        "linear/linear_model/city/weights",
        "linear/linear_model/age_bucketized_X_city/weights",
        *dnn("logits", "hiddenlayer_10", "hiddenlayer_9"),
        "dnn/hiddenlayer_9/batchnorm_9/moving_variance",
        "dnn/hiddenlayer_9/batchnorm_9/gamma",
        f"{INPUT}/street/name_embedding/embedding_weights",
        f"{INPUT}/city_embedding/embedding_weights",
        "dnn/hiddenlayer_9/batchnorm_8/gamma",
        "dnn/hiddenlayer_9/kernel/t_0/Adagrad",
        "global_step",
        "dense/kernel",
    ]
    found = canonical(given)
    assert [(variable.tower, variable.place, variable.role) for variable in found] == [
        ("dnn", "city_embedding", "embedding_weights"),
        ("dnn", "street/name_embedding", "embedding_weights"),
        ("dnn", "hiddenlayer_9", "kernel"),
        ("dnn", "hiddenlayer_9", "bias"),
        ("dnn", "hiddenlayer_9", "gamma"),
        ("dnn", "hiddenlayer_9", "moving_variance"),
        ("dnn", "hiddenlayer_10", "kernel"),
        ("dnn", "hiddenlayer_10", "bias"),
        ("dnn", "logits", "kernel"),
        ("dnn", "logits", "bias"),
        ("linear", "age_bucketized_X_city", "weights"),
        ("linear", "city", "weights"),
        ("linear", "", "bias_weights"),
    ]
    assert {variable.name for variable in found} == set(given[:-4])


def test_dense_layers_are_paired_by_their_order() -> None:
    assert dense_pairs(dense("a", "m/b"), dnn("logits", "hiddenlayer_0"), "x") == {
        "a/kernel": "dnn/hiddenlayer_0/kernel",
        "a/bias": "dnn/hiddenlayer_0/bias",
        "m/b/kernel": "dnn/logits/kernel",
        "m/b/bias": "dnn/logits/bias",
    }
    assert dense_pairs(dense("a"), ["dense/kernel", "dense/bias"], "x") == {}, "not of a canned estimator"


@pytest.mark.parametrize(
    ("here", "more"),
    [
        (dense("a"), []),
        (dense("a", "b", "c"), []),
        ([], []),
        (dense("a", "b", roles=("kernel",)), []),
        (dense("a", "b"), [f"{INPUT}/city_embedding/embedding_weights"]),
        (dense("a", "b"), ["dnn/hiddenlayer_0/batchnorm_0/gamma"]),
        (dense("a", "b"), ["linear/linear_model/age/weights"]),
    ],
)
def test_other_layers_are_refused_by_name(here: Any, more: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        dense_pairs(here, [*dnn("hiddenlayer_0", "logits"), *more], "/old")
    message = str(caught.value)
    assert message.startswith("warm start: /old is of a canned estimator, with ")
    assert message.endswith("; give var_name_to_prev_var_name") and "\n" not in message
    for name in (*(name for layer in here for name in layer.values()), "dnn/logits/bias", *more):
        assert re.search(rf"\b{name}\b", message)
    assert here or "this one's have none" in message

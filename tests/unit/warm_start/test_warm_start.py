"""Warm start: which variable gets which value, from whatever it starts from."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.warm_start import WarmStart, WarmStartSettings
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.model.model_state import by_path
from hpc_train.warm_start.apply import warm_start
from hpc_train.warm_start.plan import VariableType, matched, plan
from hpc_train.warm_start.source import check_path, read_source

NUMBERED = frozenset({"dense", "conv2d", "functional", "sequential"})
F32 = "float32"


def settings(**changes: Any) -> WarmStartSettings:
    return WarmStartSettings(**{"ckpt_to_initialize_from": "/old", **changes})


def shaped(*names: str, shape: tuple[int, ...] = (2,), dtype: str = F32) -> dict[str, VariableType]:
    return dict.fromkeys(names, VariableType(shape, dtype))


# settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vars_to_warm_start": "dense("}, r"'dense\(' is no regular expression at character 6: missing \)"),
        ({"vars_to_warm_start": ["ok", "*"]}, r"'\*' is no regular expression at character 1: nothing to repeat"),
        ({"vars_to_warm_start": []}, "a list of 1 at least"),
        ({"ckpt_to_initialize_from": ""}, "'' is not allowed; allowed: a job-dir"),
        ({"var_name_to_prev_var_name": {"a/": "b"}}, "either both end in /"),
        ({"var_name_to_prev_var_name": {"a": ""}}, "empty name"),
        ({"vars_to_warmstart": "x"}, "vars_to_warmstart"),
    ],
)
def test_settings_are_checked_where_they_are_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(**changes)


def test_a_job_file_gives_a_path_or_a_mapping() -> None:
    class Job(BaseModel):
        warm_start_from: WarmStart = None

    short = Job.model_validate({"warm_start_from": "runs/a"}).warm_start_from
    long = {
        "ckpt_to_initialize_from": "runs/a",
        "vars_to_warm_start": ["a", "b"],
        "var_name_to_prev_var_name": {"a": "b"},
    }
    assert short == settings(ckpt_to_initialize_from="runs/a")
    assert short is not None and short.vars_to_warm_start == (".*",)
    job = Job.model_validate({"warm_start_from": long})
    assert job.model_dump(mode="json") == {"warm_start_from": long}
    assert Job.model_validate(job.model_dump(mode="json")) == job
    assert Job.model_validate({"warm_start_from": None}).warm_start_from is None


# the plan

LAYER = st.sampled_from(["dense", "conv2d", "body", "head", "block_1", "block_2", "dense_1", "dense_2", "conv2d_7"])
NAMES = st.lists(
    st.builds("/".join, st.tuples(LAYER, LAYER, st.sampled_from(["kernel", "bias"]))), min_size=1, unique=True
)


@given(NAMES)
def test_the_same_model_gets_every_variable_by_its_own_name(names: list[str]) -> None:
    made = plan(shaped(*names), shaped(*names), settings(), NUMBERED)
    assert made.taken == {name: name for name in names}
    assert not made.missing and not made.unused and not made.skipped


@given(NAMES, NAMES, st.sampled_from([".*", "dense", ".*/kernel", "(?!head)"]))
def test_every_variable_is_listed_once(here: list[str], there: list[str], pattern: str) -> None:
    wanted = {name for name in here if re.match(pattern, name)}
    try:
        made = plan(shaped(*here), shaped(*there), settings(vars_to_warm_start=pattern), NUMBERED)
    except UserError as error:
        assert not wanted or "none of the variables wanted" in str(error)
        return
    assert sorted([*made.taken, *made.skipped, *made.missing]) == sorted(here)
    assert {*made.taken, *made.missing} == wanted
    assert len(set(made.taken.values())) == len(made.taken), "no variable there is taken twice"
    assert sorted([*set(made.taken.values()), *made.unused]) == sorted(there)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 12))
def test_numbers_of_layers_count_by_their_order(here: int, there: int, layers: int) -> None:
    def names(first: int) -> list[str]:
        return [f"dense_{i}/kernel" if i else "dense/kernel" for i in range(first, first + layers)]

    found = matched(names(here), names(there), NUMBERED)
    assert found == dict(zip(names(here), names(there), strict=True)), "also where they overlap, and beyond ten"


@pytest.mark.parametrize(
    ("here", "there", "found"),
    [
        # numbers that a user gave are names
        (["block_1/w", "block_2/w"], ["block_2/w", "block_3/w"], {"block_2/w": "block_2/w"}),
        # a layer more, from the same beginning
        (["dense/w", "dense_1/w"], ["dense/w"], {"dense/w": "dense/w"}),
        # a layer more, from another beginning: unclear
        (["dense/w", "dense_1/w"], ["dense_1/w"], {}),
        # in parts of models, whose layers Keras numbers together
        (
            ["body/dense/w", "dense_1/w"],
            ["body/dense_3/w", "dense_4/w"],
            {"body/dense/w": "body/dense_3/w", "dense_1/w": "dense_4/w"},
        ),
        (["functional_1/a/w"], ["functional/a/w"], {"functional_1/a/w": "functional/a/w"}),
        # a loaded .keras file has lost the names of its parts
        (["body/a/w", "b/w"], ["a/w", "b/w"], {"body/a/w": "a/w", "b/w": "b/w"}),
        (["a/w"], ["body/a/w"], {"a/w": "body/a/w"}),
        (["left/a/w", "right/a/w"], ["a/w"], {}),
        (["a/w"], ["left/a/w", "right/a/w"], {}),
        (["w"], ["a/w"], {}),
    ],
)
def test_names_that_differ_are_paired_where_that_is_clear(here: list[str], there: list[str], found: Any) -> None:
    assert matched(here, there, NUMBERED) == found


def test_the_users_names_come_first() -> None:
    here, there = shaped("enc/a/w", "enc/b/w", "enc/c/w", "x/w"), shaped("old/a/w", "old/z/w", "enc/b/w", "x/w", "y/w")
    made = plan(here, there, settings(var_name_to_prev_var_name={"enc/": "old/", "x/w": "y/w", "enc/c/w": "old/z/w"}))
    assert made.taken == {"enc/a/w": "old/a/w", "enc/c/w": "old/z/w", "x/w": "y/w"}
    assert made.missing == ("enc/b/w",), "of a part that is named, nothing comes from elsewhere"
    assert made.unused == ("enc/b/w", "x/w")
    made = plan(
        shaped("enc/dense_7/w", "enc/dense_8/w", "dense_9/w"),
        shaped("dense/w", "old/dense_1/w", "old/dense_2/w"),
        settings(var_name_to_prev_var_name={"enc/": "old/"}),
        NUMBERED,
    )
    assert list(made.taken.values()) == ["old/dense_1/w", "old/dense_2/w", "dense/w"], "numbers count within a part"
    assert plan(shaped("m/a/w"), shaped("a/w"), settings(var_name_to_prev_var_name={"m/": "/"})).taken == {
        "m/a/w": "a/w"
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"vars_to_warm_start": ["a", "kernel"]},
            "'kernel' matches no variable of the model from its beginning; it has a/kernel, a/bias",
        ),
        (
            {"var_name_to_prev_var_name": {"a/kernal": "a/bias"}},
            "the model has no variable a/kernal; did you mean a/kernel?",
        ),
        (
            {"var_name_to_prev_var_name": {"a/bias": "a/bais"}},
            "what it starts from has no variable a/bais; did you mean a/bias?",
        ),
        (
            {"var_name_to_prev_var_name": {"a/": "zz/"}},
            "what it starts from has no variable zz/; there are a/",
        ),
        (
            {"vars_to_warm_start": "a/k", "var_name_to_prev_var_name": {"a/bias": "a/bias"}},
            "vars_to_warm_start leaves a/bias out",
        ),
    ],
)
def test_unknown_names_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        plan(shaped("a/kernel", "a/bias"), shaped("a/kernel", "a/bias"), settings(**changes))


def test_shapes_and_types_that_differ_are_all_listed() -> None:
    here = {
        "a/w": VariableType((2, 3), F32),
        "b/w": VariableType((2,), F32),
        "c/n": VariableType((), "int32"),
        "d/w": VariableType((4,), F32),
    }
    there = {
        "a/w": VariableType((2, 4), F32),
        "b/w": VariableType((2,), "bfloat16"),
        "c/n": VariableType((), F32),
        "d/w": VariableType((5,), "float16"),
    }
    with pytest.raises(UserError) as caught:
        plan(here, there, settings())
    assert str(caught.value).splitlines()[:4] == [
        "warm start: 3 of 4 variables differ from those of /old:",
        "  a/w is float32 [2, 3] here, but a/w is float32 [2, 4] there",
        "  c/n is int32 [] here, but c/n is float32 [] there",
        "  d/w is float32 [4] here, but d/w is float16 [5] there",
    ]
    assert "'(?!a/w)'" in str(caught.value)


def test_nothing_to_take_is_an_error_and_random_states_never_are_taken() -> None:
    with pytest.raises(UserError, match="has none of the variables wanted: there are b/w, but wanted are a/w"):
        plan(shaped("a/w"), shaped("b/w"), settings())
    state = {"dropout/seed_generator/seed_generator_state": VariableType((2,), "int64")}
    made = plan({**shaped("a/w"), **state}, {**shaped("a/w"), **state}, settings())
    assert (list(made.taken), made.skipped, made.unused) == (["a/w"], tuple(state), ())


# real models


def build(classes: int = 3, body: str = "body", dtype: str = F32, first: int = 4) -> Any:
    import keras
    from keras import layers

    inner = keras.Sequential([keras.Input((4,)), layers.Dense(first), layers.Dense(5)], name=body)
    inputs = keras.Input((4,))
    outputs = layers.Dense(classes, name="head", dtype=dtype)(
        layers.Dropout(0.1)(layers.BatchNormalization()(inner(inputs)))
    )
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model


def value(variable: Any) -> np.ndarray:
    return np.array(variable.numpy())


def fill(model: Any) -> None:
    random = np.random.default_rng(0)
    for variable in model.variables:
        if "float" in variable.dtype:
            variable.assign(random.normal(size=variable.shape))


def save(model: Any, job_dir: Path, step: int) -> Path:
    model.optimizer.build(model.trainable_variables)
    arrays = [{n: v.numpy() for n, v in by_path(p.variables).items()} for p in (model, model.optimizer)]
    manager = CheckpointManager(job_dir / "checkpoints", Retention())
    return manager.save(Snapshot(*arrays, DataProgress(step), None, 1, 1e9 + step))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A model, and a folder with all that it was saved as."""
    folder, model = tmp_path_factory.mktemp("old"), build(dtype="bfloat16")
    save(model, folder / "job", 10)
    fill(model)
    save(model, folder / "job", 20)
    model.save(folder / "model.keras")
    export = folder / "job/export/best/1700000000"
    model.export(str(export), verbose=False)
    (export / "hpc_train.json").write_text(json.dumps({"step": 20}))
    yield model, folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("path", "kind", "step"),
    [
        ("job", "job-dir", 20),
        ("job/checkpoints", "job-dir", 20),
        ("job/checkpoints/step-00000020", "checkpoint", 20),
        ("model.keras", ".keras file", None),
        ("job/export/best/1700000000", "SavedModel", 20),
    ],
)
def test_all_that_a_model_was_saved_as_gives_the_same(
    old: tuple[Any, Path], tmp_path: Path, path: str, kind: str, step: int | None
) -> None:
    model, new = old[0], build()
    before = [value(v) for v in new.variables if "seed" in v.path]
    assert check_path(old[1] / path) == kind
    done = warm_start(World.alone(), new, settings(ckpt_to_initialize_from=old[1] / path), tmp_path)
    for ours, theirs in zip(new.variables, model.variables, strict=True):
        if "seed" not in ours.path:
            np.testing.assert_array_equal(value(ours), value(theirs).astype(F32), err_msg=ours.path)
    assert [value(v).tolist() for v in new.variables if "seed" in v.path] == [b.tolist() for b in before]
    assert (done.record["kind"], done.record["step"], done.record["missing"]) == (kind, step, [])
    assert len(done.record["taken"]) == 10 and done.record["unused"] == []
    assert json.loads(json.dumps(done.record)) == done.record
    assert "10 of 11 variables taken" in done.lines[0] and len(done.lines) <= 10


def test_a_model_with_another_head_takes_the_rest(old: tuple[Any, Path], tmp_path: Path) -> None:
    new = build(7, body="encoder")
    path = old[1] / "job"
    with pytest.raises(UserError, match=r"head/kernel is float32 \[5, 7\] here, but head/kernel is bfloat16 \[5, 3\]"):
        warm_start(World.alone(), new, settings(ckpt_to_initialize_from=path), tmp_path)
    body, head = value(old[0].variables[0]), value(new.get_layer("head").kernel)
    chosen = settings(ckpt_to_initialize_from=path, vars_to_warm_start="(?!head)")
    missing = warm_start(World.alone(), new, chosen, tmp_path)
    assert [name.split("/")[0] for name in missing.record["missing"]] == ["encoder"] * 4
    assert [name.split("/")[0] for name in missing.record["unused"]] == ["body"] * 4 + ["head"] * 2
    assert missing.warning is not None and "not there, so they keep their initial values: encoder" in missing.warning
    done = warm_start(
        World.alone(), new, dataclasses.replace(chosen, var_name_to_prev_var_name={"encoder/": "body/"}), tmp_path
    )
    assert [name for name in done.record["skipped"] if "seed" not in name] == ["head/kernel", "head/bias"]
    assert (len(done.record["taken"]), done.record["missing"], done.warning) == (8, [], None)
    np.testing.assert_array_equal(value(new.variables[0]), body)
    np.testing.assert_array_equal(value(new.get_layer("head").kernel), head)


def test_bfloat16_takes_float32(old: tuple[Any, Path], tmp_path: Path) -> None:
    source = build()
    fill(source)
    save(source, tmp_path / "job", 5)
    new = build(dtype="bfloat16")
    warm_start(World.alone(), new, settings(ckpt_to_initialize_from=tmp_path / "job"), tmp_path / "new")
    ours, theirs = value(new.get_layer("head").kernel), value(source.get_layer("head").kernel)
    np.testing.assert_array_equal(ours, theirs.astype(ours.dtype))
    source.get_layer("head").kernel.assign(np.full((5, 3), np.nan))
    source.save(tmp_path / "nan.keras")
    with pytest.raises(UserError, match=r"head/kernel of .* holds NaN"):
        warm_start(World.alone(), new, settings(ckpt_to_initialize_from=tmp_path / "nan.keras"), tmp_path / "new")


def test_a_damaged_checkpoint_is_passed_over_in_a_job_dir_and_refused_by_itself(
    old: tuple[Any, Path], tmp_path: Path
) -> None:
    shutil.copytree(old[1] / "job/checkpoints", tmp_path / "checkpoints")
    state = tmp_path / "checkpoints/step-00000020/state.h5"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    assert read_source(tmp_path).step == 10
    with pytest.raises(UserError, match="do not match their digest"):
        read_source(state.parent)
    copied = tmp_path / "pretrained"
    shutil.copytree(tmp_path / "checkpoints/step-00000010", copied)
    assert read_source(copied).step == 10, "a checkpoint may be called anything"
    shutil.rmtree(tmp_path / "checkpoints/step-00000010")
    with pytest.raises(UserError, match=r"no checkpoint there is whole: .*digest"):
        read_source(tmp_path)


def test_what_cannot_be_started_from(old: tuple[Any, Path], tmp_path: Path) -> None:
    (tmp_path / "job/checkpoints").mkdir(parents=True)
    (tmp_path / "a.h5").write_text("")
    (tmp_path / "a.keras").write_text("PK")
    for path, message in (
        (tmp_path / "none", "there is no such file or folder; give a job-dir"),
        (tmp_path / "a.h5", "a file of no known kind"),
        (tmp_path / "a.keras", "not a .keras file as Keras 3 writes it"),
        (tmp_path / "job", "a job-dir without a checkpoint yet"),
        (old[1] / "job/export/best", "did you mean .*/export/best/1700000000"),
        (tmp_path, "no checkpoint and no model is here"),
    ):
        with pytest.raises(UserError, match=message):
            check_path(path)
    with pytest.raises(UserError, match="is the job-dir itself"):
        check_path(tmp_path / "x/../job", tmp_path / "job")


def test_code_in_a_keras_file_is_not_run(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Lambda(lambda x: x + 1)])
    model.save(tmp_path / "lambda.keras")
    with pytest.raises(UserError, match=r"Keras cannot load it[\s\S]*Lambda layers are refused"):
        read_source(tmp_path / "lambda.keras")

"""Warm start from checkpoints of TensorFlow: those of its Saver, of its objects, and of canned estimators."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.warm_start.apply import warm_start
from hpc_train.warm_start.estimator_names import canonical
from hpc_train.warm_start.source import check_path, read_source
from hpc_train.warm_start.tensorflow_checkpoint import names_of, others_among
from tests.support import REPOSITORY

KEPT = REPOSITORY / "tests/data/estimator_2_15"
"""Checkpoints that TensorFlow 2.15 wrote; make.py there made them."""
INDEX, DATA = "model.ckpt-20.index", "model.ckpt-20.data-00000-of-00001"
KIND = "TensorFlow checkpoint"


def started(model: Any, path: Path, **names: Any) -> Any:
    return warm_start(World.alone(), model, WarmStartSettings(path, **names), Path("/nowhere/new"))


def dnn(*units: int, **options: Any) -> Any:
    """A model of 3 numbers with so many units in its Dense layers."""
    import keras

    layers = [keras.layers.Dense(n, "relu", **options) for n in units[:-1]] + [keras.layers.Dense(units[-1])]
    return keras.Sequential([keras.Input((3,)), *layers])


def numbers() -> np.ndarray:
    """What the kept estimators had as input, columns by their names: float32 [32, 3]."""
    with np.load(KEPT / "inputs.npz", allow_pickle=False) as inputs:
        return np.concatenate([inputs["age"][:, None], inputs["size"]], axis=1)


def predictions(name: str) -> dict[str, np.ndarray]:
    with np.load(KEPT / name / "predictions.npz", allow_pickle=False) as found:
        return dict(found)


# canned estimators


def test_a_plain_model_takes_the_weights_of_a_dnn_classifier() -> None:
    model = dnn(8, 4, 3)
    done = started(model, KEPT / "dnn_classifier")
    recorded, logits = predictions("dnn_classifier"), model(numbers()).numpy()
    np.testing.assert_allclose(logits, recorded["logits"], atol=1e-5)
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(exponents / exponents.sum(axis=1, keepdims=True), recorded["probabilities"], atol=1e-5)
    assert (done.record["kind"], done.record["step"]) == (KIND, 20)
    assert done.record["from"] == str((KEPT / "dnn_classifier/model.ckpt-20").resolve())
    assert [pair["from"].split("/")[1] for pair in done.record["taken"]] == [
        place for place in ("hiddenlayer_0", "hiddenlayer_1", "logits") for _ in range(2)
    ]
    assert (done.record["unused"], done.record["missing"], done.warning) == ([], [], None)
    assert done.record["left_aside"] == {"optimizer": 8, "counter": 1}
    assert "6 of 6 variables taken" in done.lines[0]
    assert done.lines[-1] == "  there, but of no model: 1 (counter), 8 (optimizer)"


def test_a_model_with_other_layers_asks_for_the_map() -> None:
    with pytest.raises(UserError, match=r"is of a canned estimator, with dnn/hiddenlayer_0/kernel, .*this one's have"):
        started(dnn(8, 3), KEPT / "dnn_classifier")
    with pytest.raises(UserError, match=r"3 of 6 variables differ[\s\S]*float32 \[3, 9\] here, .* float32 \[3, 8\]"):
        started(dnn(9, 4, 3), KEPT / "dnn_classifier")
    with pytest.raises(UserError, match=r"canned estimator, with .*city_embedding/embedding_weights"):
        started(dnn(4, 1), KEPT / "dnn_regressor")

    model = dnn(8, 3)
    first = model.layers[0].name
    mapped = {f"{model.name}/{first}/": "dnn/hiddenlayer_0/"}
    done = started(model, KEPT / "dnn_classifier", var_name_to_prev_var_name=mapped)
    assert [pair["from"] for pair in done.record["taken"]] == ["dnn/hiddenlayer_0/kernel", "dnn/hiddenlayer_0/bias"]
    assert len(done.record["unused"]) == 4 and len(done.record["missing"]) == 2


def test_another_head_leaves_the_hidden_layers() -> None:
    import keras

    model = keras.Sequential([dnn(8, 4), keras.layers.Dense(7, name="head")])
    done = started(model, KEPT / "dnn_classifier", vars_to_warm_start="(?!.*head)")
    assert [pair["from"].split("/")[1] for pair in done.record["taken"]] == ["hiddenlayer_0"] * 2 + [
        "hiddenlayer_1"
    ] * 2
    assert done.record["unused"] == ["dnn/logits/bias", "dnn/logits/kernel"]


def test_a_linear_model_and_an_embedding_are_taken_by_a_map() -> None:
    import keras

    city = keras.Input((), dtype="int32")
    model = keras.Model(city, keras.layers.Embedding(5, 3, name="city")(city))
    there = "dnn/input_from_feature_columns/input_layer/city_embedding/embedding_weights"
    done = started(model, KEPT / "dnn_regressor", var_name_to_prev_var_name={"city/embeddings": there})
    assert done.record["taken"] == [{"name": "city/embeddings", "from": there}]
    np.testing.assert_array_equal(model(np.arange(5)).numpy(), read_source(KEPT / "dnn_regressor").arrays[there])
    with pytest.raises(UserError, match=r"has global_step \(counter\), which no variable of a model takes"):
        started(model, KEPT / "dnn_regressor", var_name_to_prev_var_name={"city/embeddings": "global_step"})
    with pytest.raises(UserError, match="is of a canned estimator"):
        started(model, KEPT / "linear_regressor")


WIDE = ["age_bucketized", "age_bucketized_X_colour", "city", "colour"]
HIDDEN = ["hiddenlayer_0/kernel", "hiddenlayer_0/bias"]
LOGITS = ["logits/kernel", "logits/bias"]


@pytest.mark.parametrize(
    ("name", "expected", "shape"),
    [
        ("linear_classifier", [f"{c}/weights" for c in ["age", *WIDE, "size"]] + ["/bias_weights"], (2, 3)),
        ("linear_regressor", [f"{c}/weights" for c in ["age", *WIDE, "size"]] + ["/bias_weights"], (2, 1)),
        ("dnn_classifier", [*HIDDEN, "hiddenlayer_1/kernel", "hiddenlayer_1/bias", *LOGITS], (4, 3)),
        ("dnn_regressor", ["city_embedding/embedding_weights", *HIDDEN, *LOGITS], (4, 1)),
        (
            "dnn_linear_combined_classifier",
            ["city_embedding/embedding_weights", *HIDDEN]
            + [f"hiddenlayer_0/{role}" for role in ("gamma", "beta", "moving_mean", "moving_variance")]
            + [*LOGITS, *(f"{column}/weights" for column in WIDE), "/bias_weights"],
            (4, 3),
        ),
    ],
)
def test_the_kept_checkpoints_have_what_their_estimators_had(
    name: str, expected: list[str], shape: tuple[int, int]
) -> None:
    source = read_source(KEPT / name)
    found = canonical(source.arrays)
    assert [f"{variable.place}/{variable.role}" for variable in found] == expected
    assert len(found) == len(source.arrays) and source.step == 20
    assert set(source.others.values()) == {"optimizer", "counter"}
    last = [variable for variable in found if variable.role in ("kernel", "weights")][-1]
    if last.place in ("size", "logits"):
        assert source.arrays[last.name].shape == shape
    arrays = (*source.arrays.values(), *predictions(name).values())
    assert all(np.isfinite(array).all() for array in arrays if array.dtype.kind in "fi")
    size = sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file())
    assert size < 100_000


# what a checkpoint is called


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT / "dnn_classifier", tmp_path / "copy"))


def test_a_prefix_a_file_of_it_and_its_folder_are_the_same(copy: Path, tmp_path: Path) -> None:
    for name in ("", "model.ckpt-20", INDEX, DATA):
        assert check_path(copy / name) == KIND
        assert read_source(copy / name).path == copy / "model.ckpt-20"
    links = tmp_path / "links"
    links.mkdir()
    for number, name in enumerate((INDEX, DATA)):
        (copy / name).rename(copy / str(number))
        (links / name).symlink_to(copy / str(number))
    assert read_source(links / "model.ckpt-20").path == links / "model.ckpt-20"


@pytest.mark.parametrize(
    "path",
    [
        "model.ckpt-20",
        "/somewhere/else/model.ckpt-20",
        "../../model.ckpt-20",
        r"\057old\057model.ckpt-\062\060",
        'a \\"b\\" \\303\\274/model.ckpt-20',
    ],
)
def test_the_newest_is_looked_for_in_its_own_folder(copy: Path, path: str) -> None:
    (copy / "model.ckpt-3.index").write_bytes(b"")
    (copy / "checkpoint").write_text(
        f'all_model_checkpoint_paths: "model.ckpt-3"\nmodel_checkpoint_path: "{path}"\nlast_preserved_timestamp: 1.5\n'
    )
    assert read_source(copy).path == copy / "model.ckpt-20"


def _huge(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 30)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_huge, "cannot be read: has more than 1 MiB; give one of those here: model.ckpt-20"),
        (Path.mkdir, "cannot be read: is a folder, not a regular file; give one of"),
        (os.mkfifo, "cannot be read: is a FIFO, not a regular file; give one of"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: .*; give one of"),
        (
            lambda path: path.write_bytes(b"\xff\0\x1b[2J"),
            "names no checkpoint .*TensorFlow did not write it; give one",
        ),
        (lambda path: path.write_text('model_checkpoint_path: ""'), "names no checkpoint"),
        (lambda path: path.write_bytes(b"\n" * (1 << 20)), "names no checkpoint"),
        (lambda path: path.write_text('model_checkpoint_path: "a\\000b"'), "names no checkpoint"),
        (lambda path: path.write_text('model_checkpoint_path: "x/.."'), "names .., which is not in this folder"),
        (lambda path: path.write_text(f'model_checkpoint_path: "{"x" * 9000}"'), "names x+, which is not in this"),
        (lambda path: path.write_text('model_checkpoint_path: "../model.ckpt-9"'), "names model.ckpt-9, which is not"),
    ],
)
def test_a_checkpoint_file_that_does_not_name_the_newest(copy: Path, make: Callable[[Path], Any], message: str) -> None:
    (copy / "checkpoint").unlink()
    make(copy / "checkpoint")
    with pytest.raises(UserError, match=rf"^warm_start_from: {re.escape(str(copy))}/checkpoint: {message}"):
        check_path(copy)


def test_what_is_not_there_is_said_with_what_is(copy: Path) -> None:
    for name, message in (
        ("model.ckpt-21", rf"model.ckpt-21: there is no such file or folder; did you mean {copy}/model.ckpt-20\?"),
        (".index", "/.index: there is no such file or folder"),
        ("x", "x: there is no such file or folder; there are model.ckpt-20$"),
        ("x/y", "x/y: there is no such file or folder; give a job-dir, .* or a checkpoint of TensorFlow"),
        (f"{INDEX}/y", "/y: there is no such file or folder; give a job-dir"),
    ):
        with pytest.raises(UserError, match=message):
            check_path(copy / name)
    (copy / "checkpoint").unlink()
    with pytest.raises(UserError, match=r"no file `checkpoint` says which is the newest; give one .*: model.ckpt-20$"):
        check_path(copy)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ([DATA], f"of this checkpoint {DATA} is not here; copy all files model.ckpt-20"),
        ([INDEX], f"of this checkpoint {INDEX} is not here; copy all"),
    ],
)
def test_a_checkpoint_without_all_its_files(copy: Path, lost: list[str], message: str) -> None:
    for name in lost:
        (copy / name).unlink()
    for path in (copy, copy / "model.ckpt-20"):
        with pytest.raises(UserError, match=message):
            check_path(path)
    (copy / "model.ckpt-20.data-00001-of-00003").write_bytes(b"")
    (copy / DATA).unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"data-00000-of-00003, model\.ckpt-20\.data-00002-of-00003 is not here"):
        check_path(copy)


def _cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (DATA, lambda path: _cut(path, 100), "100 bytes, but the variables have 332; copy all files model.ckpt-20"),
        (DATA, lambda path: _flip(path, 100), "the values of dnn/.* are damaged, or cut short; copy all files"),
        (INDEX, lambda path: path.write_bytes(b"garbage" * 100), "index: damaged, or not written by TensorFlow; copy"),
        (INDEX, lambda path: path.write_bytes(b""), "index: damaged, or not written by TensorFlow; copy all files"),
        (INDEX, lambda path: _cut(path, 300), "index: damaged, or not written by TensorFlow; copy all files"),
        (INDEX, lambda path: _flip(path, 60), "index: damaged, or not written by TensorFlow; copy all files"),
    ],
)
def test_a_damaged_checkpoint(copy: Path, name: str, damage: Callable[[Path], Any], message: str) -> None:
    damage(copy / name)
    with pytest.raises(UserError, match=message) as caught:
        read_source(copy)
    assert str(copy) in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_nothing_waits_for_what_is_no_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(UserError, match=f"{name}: cannot be read: is a FIFO, not a regular file"):
        read_source(copy)


# checkpoints by name


def saved(path: Path, build: Callable[[Any], Any], **options: Any) -> Path:
    """What TensorFlow's Saver leaves at `path` of the graph that `build` makes from tf.compat.v1."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        build(v1)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return Path(v1.train.Saver().save(session, str(path), **options))


def test_variables_by_name_in_slices_with_slots_and_of_all_types(tmp_path: Path) -> None:
    def build(v1: Any) -> None:
        import tensorflow as tf

        def get(name: str, value: Any) -> Any:
            return v1.get_variable(name, initializer=tf.constant(value))

        with v1.variable_scope("sliced", partitioner=v1.fixed_size_partitioner(2)):
            v1.get_variable("table", initializer=tf.reshape(tf.range(12.0), (4, 3)))
        kernel, bias = get("dense/kernel", np.full((2, 3), 0.5, np.float32)), get("dense/bias", [1.0, 2.0, 3.0])
        get("half", np.array([1.5, 2.5], tf.bfloat16.as_numpy_dtype))
        get("count", np.array([1, 2], np.int64))
        get("words", ["a", "b"])
        v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(kernel) + tf.reduce_sum(bias)
        optimizers = [v1.train.AdamOptimizer, v1.train.AdagradOptimizer, v1.train.FtrlOptimizer]
        for optimizer in [*(kind(0.1) for kind in optimizers), v1.train.MomentumOptimizer(0.1, 0.9)]:
            optimizer.minimize(loss, var_list=[kernel, bias])
        tf.train.ExponentialMovingAverage(0.9).apply([kernel])

    source = read_source(saved(tmp_path / "model.ckpt", build, global_step=7))
    assert list(source.arrays) == [
        "count", "dense/bias", "dense/kernel", "dense/kernel/ExponentialMovingAverage", "half", "sliced/table",
    ]  # fmt: skip
    np.testing.assert_array_equal(source.arrays["sliced/table"], np.arange(12).reshape(4, 3))
    assert source.arrays["half"].astype(float).tolist() == [1.5, 2.5]
    assert (source.step, source.others["words"]) == (0, "text")
    assert Counter(source.others.values()) == {"optimizer": 14, "counter": 1, "text": 1}
    assert {"dense/kernel/Adam", "dense/bias/Ftrl_1", "dense/bias/Momentum", "beta1_power"} <= set(source.others)

    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="dense")])
    done = started(model, source.path)
    assert [pair["from"] for pair in done.record["taken"]] == ["dense/kernel", "dense/bias"]
    assert done.record["unused"] == ["count", "dense/kernel/ExponentialMovingAverage", "half", "sliced/table"]
    np.testing.assert_allclose(model(np.ones((1, 2))).numpy(), [[2, 3, 4]])
    average = {f"{model.name}/dense/kernel": "dense/kernel/ExponentialMovingAverage"}
    assert started(model, source.path, var_name_to_prev_var_name=average).record["missing"] == []
    with pytest.raises(UserError, match=r"has words \(text\), which no variable of a model takes; name"):
        started(model, source.path, var_name_to_prev_var_name={f"{model.name}/dense/kernel": "words"})
    with pytest.raises(UserError, match=r"has no variable dense/kernal; did you mean dense/kernel\?"):
        started(model, source.path, var_name_to_prev_var_name={f"{model.name}/dense/kernel": "dense/kernal"})


def test_an_index_of_several_blocks(tmp_path: Path) -> None:
    import tensorflow as tf

    names = [f"block_{n % 97}/layer_{n}/a_name_of_some_length/kernel" for n in range(9000)]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "many"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(float(n)) for n in range(len(names))],
    )
    arrays = read_source(tmp_path / "many").arrays
    assert [float(arrays[name]) for name in names] == list(range(len(names)))


def test_layers_of_tensorflow_1_are_found_by_their_numbers(tmp_path: Path) -> None:
    import keras

    def build(v1: Any) -> None:
        for name, shape in (("dense", (3, 2)), ("dense_1", (2, 2)), ("dense_2", (2, 1))):
            v1.get_variable(f"net/{name}/kernel", shape)
            v1.get_variable(f"net/{name}/bias", shape[1:])

    model = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(n) for n in (2, 2, 1))], name="net")
    done = started(model, saved(tmp_path / "old", build))
    assert [pair["from"] for pair in done.record["taken"]] == [
        f"net/{name}/{role}" for name in ("dense", "dense_1", "dense_2") for role in ("kernel", "bias")
    ]


@pytest.mark.parametrize(
    ("names", "others"),
    [
        # as the canned estimators of TensorFlow 1 and of 2 name them
        (["dnn/logits/bias", "dnn/logits/bias/t_0/Adam_1", "dnn/head/beta2_power"], 2),
        (["linear/linear_model/a/weights", "linear/linear_model/a/weights/part_0/Ftrl"], 1),
        (["dnn/logits/bias", "training/Adagrad/dnn/logits/bias/accumulator", "training/Ftrl/l1"], 2),
        (["bert/dense/kernel", "bert/dense/kernel/adam_m"], 1),
        (["beta1_power_1", "global_step"], 2),
        # of a model, whatever they are called
        (["Adam/kernel", "training/kernel", "optimizer/kernel", "kernel/ExponentialMovingAverage", "kernel"], 0),
    ],
)
def test_what_belongs_to_an_optimizer_is_known_by_where_it_is(names: list[str], others: int) -> None:
    assert len(others_among(names)) == others


# checkpoints of objects


def test_variables_of_objects(tmp_path: Path) -> None:
    import tensorflow as tf

    class Layer(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel, self.words = tf.Variable([[1.0, 2.0]]), tf.Variable("a")
            self.names = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)

    step = tf.Variable(12, dtype=tf.int64)
    prefix = tf.train.Checkpoint(model=Layer(), global_step=step).save(str(tmp_path / "ckpt"))
    source = read_source(tmp_path)
    assert (source.path, source.step, list(source.arrays)) == (Path(prefix), 12, ["model/kernel"])
    assert source.others["save_counter"] == "counter" and source.others["model/words"] == "text"
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" not in source.others


@pytest.mark.parametrize("optimizer", ["optimizer", "how"])
def test_a_keras_model_among_objects_has_its_own_names(tmp_path: Path, optimizer: str) -> None:
    import keras
    import tensorflow as tf

    old, new = (
        keras.Sequential([dnn(4, 2, name="first"), keras.layers.BatchNormalization(name="scale")]) for _ in range(2)
    )
    old.compile("adam", "mse")
    old.fit(np.ones((2, 3)), np.ones((2, 2)), verbose=0)
    tf.train.Checkpoint(net=old, **{optimizer: old.optimizer}).save(str(tmp_path / "ckpt"))
    done = started(new, tmp_path)
    assert (len(done.record["taken"]), done.record["missing"], done.record["unused"]) == (8, [], [])
    assert done.record["left_aside"]["optimizer"] == 14
    for ours, theirs in zip(new.variables, old.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


def test_names_of_objects_that_are_not_clear_are_their_keys() -> None:
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    keys = [f"a/layer-0/kernel{end}", f"b/layer-0/kernel{end}", f"c/w{end}", f"d/w{end}"]
    paths = dict(zip(keys, ["dense/kernel", "dense/kernel", "Variable", "scale/gamma"], strict=True))
    assert list(names_of(keys, paths)) == ["a/layer-0/kernel", "b/layer-0/kernel", "c/w", "scale/gamma"]

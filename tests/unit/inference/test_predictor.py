"""Batch prediction: which file holds what, what is refused, and what a second run makes of what is there."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.data.sampling.work_split import dealt, output_paths, pieces_of
from hpc_train.data.writing.writer import write_shards
from hpc_train.distributed.world import World
from hpc_train.errors import UserError

tf = pytest.importorskip("tensorflow")

from hpc_train.inference.loaded_export import LoadedExport, load_export  # noqa: E402
from hpc_train.inference.predictor import inputs_from, predict_shards  # noqa: E402

rows = st.lists(st.integers(1, 5000), min_size=1, max_size=8)


@given(rows, st.integers(1, 300), st.integers(1, 9))
def test_every_row_is_dealt_once_in_pieces_of_whole_batches(shard_rows, batch_size, ranks):
    pieces = pieces_of(shard_rows, batch_size)
    found = [
        (piece.shard, row) for part in dealt(pieces, ranks) for piece in part for row in range(piece.first, piece.end)
    ]
    assert found == [(shard, row) for shard, count in enumerate(shard_rows) for row in range(count)]
    assert all(piece.first % batch_size == 0 for piece in pieces)


@given(rows, st.integers(1, 9))
def test_ranks_get_as_many_rows_as_each_other_give_or_take_a_piece(shard_rows, ranks):
    pieces = pieces_of(shard_rows, 4)
    parts = [sum(piece.rows for piece in part) for part in dealt(pieces, ranks)]
    assert max(parts) <= sum(shard_rows) / ranks + max(piece.rows for piece in pieces)


@pytest.mark.parametrize(
    ("shards", "patterns", "out", "expected"),
    [
        (["d/x-0.h5", "d/x-1.h5"], ["d/x-*.h5"], "o/preds-*.h5", ["o/preds-0.h5", "o/preds-1.h5"]),
        (["a-1.h5", "b-1.h5"], ["*-*.h5"], "*.p.h5", ["a-1.p.h5", "b-1.p.h5"]),
        (["a.h5", "b.h5"], ["a.h5", "b.h5"], "p-*.h5", ["p-a.h5", "p-b.h5"]),
        (["a.h5"], ["a.h5"], "p.h5", ["p.h5"]),
        (["d/1.h5"], ["d/?.h5"], "p-*.h5", ["p-1.h5"]),
    ],
)
def test_outputs_are_called_as_the_shards_are(shards, patterns, out, expected):
    assert output_paths(shards, patterns, out) == [Path(path) for path in expected]


@pytest.mark.parametrize(
    ("shards", "patterns", "out", "message"),
    [
        (["a/1.h5", "b/1.h5"], ["*/1.h5"], "p-*.h5", "both go to p-1.h5"),
        (["a.h5", "b.h5"], ["*.h5"], "p.h5", "put a \\* into it"),
        (["a.h5"], ["a.h5"], "*/p.h5", "one \\* is allowed"),
        (["a.h5"], ["*.h5"], "*.h5", "one of the shards"),
    ],
)
def test_outputs_that_cannot_be_are_refused(shards, patterns, out, message):
    with pytest.raises(UserError, match=message):
        output_paths(shards, patterns, out)


class Doubling(tf.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None], tf.int64, name="n")])
    def serve(self, x, n):
        return {"double": self.factor * x, "half": tf.cast(tf.reduce_sum(x, 1), tf.bfloat16), "text": tf.as_string(n)}


def write_export(path: Path, factor: float) -> Path:
    module = Doubling(factor)
    tf.saved_model.save(module, str(path), signatures=module.serve)
    return path


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    return [load_export(write_export(folder / str(i), 2.0 + i)) for i in range(2)]


@pytest.fixture
def shards(tmp_path):
    for i, count in enumerate([100, 7]):
        with h5py.File(tmp_path / f"x-{i}.h5", "w") as file:
            file["x"] = np.random.default_rng(i).normal(size=(count, 3)).astype(np.float32)
            file["n"] = np.arange(count, dtype=np.int32)
    return tmp_path


def predict(shards: Path, export: LoadedExport, **more):
    told: list[str] = []
    done = predict_shards(
        World.alone(), export, [str(shards / "x-*.h5")], str(shards / "out" / "p-*.h5"), 16, report=told.append, **more
    )
    return done, told


def test_each_shard_gets_a_file_with_a_row_of_each_output_for_each_of_its_rows(shards, exports):
    done, told = predict(shards, exports[0])
    assert done.rows == 107 and len(told) == 2
    for i in range(2):
        with h5py.File(shards / f"x-{i}.h5") as given, h5py.File(shards / "out" / f"p-{i}.h5") as made:
            assert sorted(made) == ["double", "half", "text"]
            np.testing.assert_array_equal(made["double"], 2 * given["x"][:])
            np.testing.assert_allclose(made["half"], given["x"][:].sum(axis=1), rtol=0.02, atol=0.02)
            assert made["text"].asstr()[:].tolist() == [str(n) for n in range(len(given["n"]))]
    assert sorted(path.name for path in (shards / "out").iterdir()) == ["p-0.h5", "p-1.h5"]


class Lengths(tf.Module):
    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="t"), tf.TensorSpec([None], tf.int64, name="n")]
    )
    def serve(self, t, n):
        return {"sum": tf.reduce_sum(t, 1), "width": tf.fill([tf.shape(t)[0]], tf.shape(t)[1]), "own": n}


def save_lengths(folder: Path, pad: dict) -> LoadedExport:
    folder.mkdir()
    module = Lengths()
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    inputs = {"t": {"dataset": "tokens"}, "n": {"dataset": "tokens/length"}}
    about = {"signature": {"inputs": inputs}, "data": {"pad": pad}}
    (folder / "hpc_train.json").write_text(json.dumps(about))
    return load_export(folder)


def test_rows_of_different_lengths_are_padded_as_in_training_or_as_is_said(tmp_path):
    rows = [np.arange(1, n % 7 + 1, dtype=np.int32) for n in range(40)]
    write_shards(tmp_path / "x", {"tokens": rows, "label": np.arange(40)}, shards=1)
    patterns = [str(tmp_path / "x-*.h5")]
    trained, bare = save_lengths(tmp_path / "trained", {"tokens": -1, "label": 3}), save_lengths(tmp_path / "bare", {})

    def predicted(export, name, *pad):
        predict_shards(World.alone(), export, patterns, str(tmp_path / f"{name}-*.h5"), 16, pad=pad, report=print)
        (path,) = tmp_path.glob(f"{name}-*.h5")
        with h5py.File(path) as file:
            return {key: file[key][:].tolist() for key in file}

    kept = [int(sum(row)) for row in rows]
    as_trained = predicted(trained, "a")
    assert as_trained["own"] == [len(row) for row in rows] and as_trained["width"] == [6] * 40
    assert as_trained["sum"] == [s - (6 - len(row)) for s, row in zip(kept, rows, strict=True)]
    assert predicted(trained, "b", "tokens=0:9") | {"width": [9] * 40, "sum": kept} == predicted(
        bare, "c", "tokens=0:9"
    )
    assert predicted(bare, "d", "tokens=0:2")["sum"] == [int(sum(row[:2])) for row in rows]
    for pad, message in [
        ((), r"dataset 'tokens' is int32 \[rows, any\], but the export takes .*; give --pad tokens=0"),
        (("tokens=0", "label=0"), "--pad label: the export reads no dataset"),
        (("tokens=0", "other=0"), "--pad other: the export reads no dataset"),
        (("tokens",), "allowed: DATASET=VALUE, such as tokens=0"),
        (("tokens=0:0",), "allowed: DATASET=VALUE"),
        (("tokens=0.5",), "has 0.5 for dataset 'tokens', which int32 cannot hold"),
    ]:
        with pytest.raises(UserError, match=message):
            predicted(bare, "e", *pad)
    with pytest.raises(UserError, match="of another padding"):
        predicted(trained, "a", "tokens=7")


def test_a_second_run_keeps_what_is_there_and_takes_only_parts_of_the_same_export(shards, exports):
    predict(shards, exports[0])
    first = (shards / "out" / "p-0.h5").read_bytes()
    done, told = predict(shards, exports[0])
    assert (done.rows, done.rows_before, told) == (0, 107, [])
    with pytest.raises(UserError, match=r"p-0\.h5: holds predictions of another export; .*--overwrite"):
        predict(shards, exports[1])
    (shards / "out" / "p-0.h5").rename(shards / "out" / ".p-0.h5.rows-000000-000100.part")
    left = shards / "out" / ".p-0.h5.rows-000000-000016.part.elsewhere-1.tmp"
    left.write_text("of a killed run")
    done, _ = predict(shards, exports[0])
    assert done.rows_before == 7 and not left.exists()
    assert (shards / "out" / "p-0.h5").read_bytes() == first
    done, _ = predict(shards, exports[1], overwrite=True)
    assert done.rows == 107
    (shards / "out" / "p-0.h5").write_text("something else")
    with pytest.raises(UserError, match=r"p-0\.h5: is no file of predictions"):
        predict(shards, exports[1])


def test_what_the_export_does_not_take_is_told_at_once_for_all_shards(shards, exports):
    for i, rows in enumerate([np.zeros((5, 4), np.float32), np.zeros((5, 3), np.float64)]):
        with h5py.File(shards / f"x-{i}.h5", "w") as file:
            file["x"] = rows
    with pytest.raises(UserError) as caught:
        predict(shards, exports[0])
    lines = sorted(str(caught.value).replace(f"{shards}/", "").splitlines())
    assert lines == [
        "x-0.h5: dataset 'x' is float32 [rows, 4], but the export takes float32 [rows, 3]",
        "x-0.h5: has no dataset 'n', which the export takes; it has x",
        "x-1.h5: dataset 'x' is float64 [rows, 3], but the export takes float32 [rows, 3]",
        "x-1.h5: has no dataset 'n', which the export takes; it has x",
    ]
    assert not (shards / "out").exists()


def test_datasets_are_named_by_input_or_in_their_order(exports):
    export = exports[0]
    assert inputs_from(export, []) == {"n": "n", "x": "x"}
    assert inputs_from(export, ["x=image"]) == {"n": "n", "x": "image"}
    assert inputs_from(export, ["a", "b"]) == {"n": "a", "x": "b"}
    with pytest.raises(UserError, match="no input y; it has n, x"):
        inputs_from(export, ["y=a"])
    with pytest.raises(UserError, match="takes 2: n, x"):
        inputs_from(export, ["a"])


def test_a_narrower_dtype_that_loses_nothing_is_taken(shards, exports):
    for i in range(2):
        with h5py.File(shards / f"x-{i}.h5", "w") as file:
            file["x"], file["n"] = np.full((5, 3), 200, np.uint8), np.arange(5)
    predict(shards, exports[0])
    with h5py.File(shards / "out" / "p-1.h5") as made:
        assert (made["double"][:] == 400).all()


def test_what_is_no_export_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        load_export(tmp_path / "no")
    with pytest.raises(UserError, match="is no export"):
        load_export(tmp_path)
    module = tf.Module()
    tf.saved_model.save(module, str(tmp_path / "1"))
    with pytest.raises(UserError, match="no signature serving_default"):
        load_export(tmp_path)


def test_outputs_without_a_row_for_each_row_are_refused(shards, tmp_path):
    module = tf.Module()
    module.serve = tf.function(lambda x: tf.reduce_sum(x), input_signature=[tf.TensorSpec([None, 3], name="x")])
    tf.saved_model.save(module, str(tmp_path / "sum"), signatures=module.serve)
    with pytest.raises(UserError, match="rows of outputs"):
        predict(shards, load_export(tmp_path / "sum"))
    assert list((shards / "out").iterdir()) == []

from __future__ import annotations

import gc
import itertools
import os
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_train import HDF5Input, UserError
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import check_record, find_shards, record_of
from hpc_train.data.loading.batch_source import BatchReader, ReadResources, order_of, training_reader
from hpc_train.data.loading.feed import Feed
from hpc_train.data.loading.label_check import check_classes, label_ranges
from hpc_train.data.loading.tf_dataset import FUNCTION_ADVICE, InputContext, open_evaluation, open_pass, open_training
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.model.builder import sparse_classes
from hpc_train.telemetry.progress import TimeShares
from tests.support import wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards of 30 and 33 rows: x uint8 [rows, 2, 2] and z float32 are the row's number, y int64 [rows, 1]."""
    start = 0
    for i, rows in enumerate((30, 33)):
        numbers = np.arange(start, start + rows)
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            options: dict[str, Any] = {"chunks": (4, 2, 2), "compression": "gzip"} if i else {}
            file.create_dataset("x", data=np.broadcast_to(numbers[:, None, None], (rows, 2, 2)).astype("u1"), **options)
            file["z"] = numbers.astype("f4")
            file["y"] = numbers[:, None]
        start += rows
    return tmp_path


def source_of(folder: Path, **options: Any) -> HDF5Input:
    return HDF5Input(**{"shards": str(folder / "*.h5"), "batch_size": 5, "features": "x", "label": "y", **options})


def batches(source: HDF5Input, count: int, threads: int = 1, step: int = 0, rank: int = 0, size: int = 1) -> list[Any]:
    progress = DataProgress(step, step * source.batch_size * size, ((0, size),)) if step else DataProgress()
    context, resources = InputContext(rank, size, 1), ReadResources(threads)
    with open_training(source, find_shards(source), context, progress, resources) as opened:
        found = list(opened.dataset.take(count).as_numpy_iterator())
        assert opened.failure is None
    return found


@pytest.mark.parametrize("options", [{"shuffle": s} for s in ("global", "block", "none")] + [{"bootstrap": 1}])
@pytest.mark.parametrize("batch_size", [5, 21, 62])
def test_a_pass_has_each_row_once_in_the_order_of_training(
    folder: Path, options: dict[str, Any], batch_size: int
) -> None:
    source = source_of(folder, batch_size=batch_size, seed=7, epochs=3, **options)
    with open_pass(source, find_shards(source), ReadResources(2)) as opened:
        found = [y.ravel() for _, y in opened.dataset.as_numpy_iterator()]
    whole, rest = divmod(63, batch_size)
    assert [len(part) for part in found] == [batch_size] * whole + [rest] * (rest > 0)
    assert sorted(np.concatenate(found)) == list(range(63))
    for part, (_, y) in zip(found, batches(replace(source, bootstrap=None), whole), strict=False):
        np.testing.assert_array_equal(part, y.ravel())


@pytest.mark.parametrize("shuffle", ["global", "block", "none"])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_of_all_kinds(folder: Path, shuffle: str, threads: int) -> None:
    source = source_of(folder, shuffle=shuffle)
    found = batches(source, 40, threads)
    read: Counter[int] = Counter()
    for x, y in found:
        assert (x.shape, x.dtype, y.shape, y.dtype) == ((5, 2, 2), np.uint8, (5, 1), np.int64)
        assert x[:, 0, 0].tolist() == y[:, 0].tolist()
        read.update(y[:, 0].tolist())
    assert set(read.values()) == {3, 4}
    again = batches(source, 40 - 17, threads, step=17)
    for (x, y), (x2, y2) in zip(found[17:], again, strict=True):
        assert x.tolist() == x2.tolist()
        assert y.tolist() == y2.tolist()


def test_several_features_and_no_label(folder: Path) -> None:
    features, labels = batches(source_of(folder, features=["x", "z"], label=["y"]), 1)[0]
    assert sorted(features) == ["x", "z"]
    assert features["z"].tolist() == labels[:, 0].tolist()
    (only,) = batches(source_of(folder, features=["z"], label=[]), 1)
    assert only.shape == (5,)


def test_features_and_labels_by_the_models_names(folder: Path) -> None:
    features, labels = batches(source_of(folder, features={"a": "z", "b": "x"}, label={"out": "y"}), 1)[0]
    assert (sorted(features), sorted(labels)) == (["a", "b"], ["out"])
    assert features["a"].tolist() == labels["out"][:, 0].tolist() == features["b"][:, 0, 0].tolist()
    (one,) = batches(source_of(folder, features={"alone": "z"}, label=[]), 1)
    assert list(one) == ["alone"], "a mapping is a dict, of one name too"


def test_epochs_end(folder: Path) -> None:
    for shuffle in ("global", "block"):
        found = batches(source_of(folder, shuffle=shuffle, epochs=2), 100)
        assert len(found) == 126 // 5
        assert sum(len(batches(source_of(folder, shuffle=shuffle, epochs=2), 100, step=s)) for s in (24, 25)) == 1


def test_map_fn_gets_the_batch_and_a_seed_of_its_own(folder: Path) -> None:
    import tensorflow as tf

    def augment(x: tf.Tensor, y: tf.Tensor, seed: tf.Tensor) -> Any:
        assert x.dtype == tf.uint8, "stored dtype until here"
        noise = tf.random.stateless_uniform(tf.shape(y), seed)
        return tf.cast(x, tf.float32) / 255, tf.cast(y, tf.float32) + noise

    source = source_of(folder, map_fn=augment)
    once, twice = batches(source, 30, threads=3), batches(source, 30)
    assert [y.tolist() for _, y in once] == [y.tolist() for _, y in twice], "the same whatever the threads"
    assert once[0][0].dtype == np.float32
    noise = [tuple(np.ravel(y % 1).tolist()) for _, y in once]
    assert len(set(noise)) == 30, "steps differ"
    assert batches(source, 1, step=20)[0][1].tolist() == once[20][1].tolist(), "going on changes nothing"
    other_rank = batches(source, 1, rank=1, size=2)[0][1]
    assert tuple(np.ravel(other_rank % 1).tolist()) not in noise
    weighted = batches(source_of(folder, map_fn=lambda x, y: (x, y, tf.ones_like(y))), 1)[0]
    assert len(weighted) == 3
    features = batches(source_of(folder, features=["x", "z"], map_fn=lambda f, y: (f["z"], y)), 1)[0]
    assert features[0].tolist() == features[1][:, 0].tolist()


def test_evaluation_reads_each_row_once_with_the_same_seeds_on_any_ranks(folder: Path) -> None:
    import tensorflow as tf

    def jitter(x: tf.Tensor, y: tf.Tensor, seed: tf.Tensor) -> Any:
        return y, tf.random.stateless_uniform([1], seed)

    source = source_of(folder, map_fn=jitter, batch_size=8)
    shards = find_shards(source)

    def of(rank: int, size: int) -> Iterator[Any]:
        with open_evaluation(source, shards, InputContext(rank, size, 1), None, ReadResources(2)) as opened:
            yield from opened.dataset.as_numpy_iterator()

    one = {int(y[0, 0]): (y.tolist(), noise.tolist()) for y, noise in of(0, 1)}
    three = {int(y[0, 0]): (y.tolist(), noise.tolist()) for rank in range(3) for y, noise in of(rank, 3)}
    assert one == three
    assert [row for y, _ in one.values() for (row,) in y] == list(range(63))


def test_a_function_of_the_users_is_skipped_to_its_step() -> None:
    import tensorflow as tf

    seen = []

    def input_fn(context: InputContext) -> tf.data.Dataset:
        seen.append((context.input_pipeline_id, context.num_input_pipelines))
        return tf.data.Dataset.range(10).batch(2)

    with open_training(input_fn, None, InputContext(1, 3, 0), DataProgress(3)) as opened:
        assert [b.tolist() for b in opened.dataset.as_numpy_iterator()] == [[6, 7], [8, 9]]
        assert opened.progress_at(7) == DataProgress(7)
        assert opened.order is None
        assert opened.advice == FUNCTION_ADVICE
    assert seen == [(1, 3)]
    with pytest.raises(UserError, match="returned list"), open_training(lambda c: [], None, InputContext(0, 1, 0)):
        pass


def test_a_failed_read_is_told_as_it_was(folder: Path) -> None:
    source = source_of(folder, shuffle="none")
    shards = find_shards(source)
    os.truncate(folder / "1.h5", 3000)
    with (
        open_training(source, shards, InputContext(0, 1, 0)) as opened,
        Feed(opened.dataset, lambda: opened.failure) as feed,
        pytest.raises(OSError, match=r"1\.h5"),
    ):
        list(itertools.islice(feed, 20))


def test_closing_lets_go_of_all_memory_and_waits_for_reads(folder: Path) -> None:
    source = source_of(folder, shuffle="none")
    shards = find_shards(source)
    others = [r for r in gc.get_objects() if isinstance(r, Reader)]  # of earlier tests, kept by pytest's reports
    readers = []
    for _ in range(3):
        with open_training(source, shards, InputContext(0, 1, 0), resources=ReadResources(2)) as opened:
            iterator = iter(opened.dataset)
            next(iterator)
            found = (r for r in gc.get_objects() if isinstance(r, Reader) and r not in others)
            readers += map(weakref.ref, found)
        with pytest.raises(Exception, match=r"IndexError|closed"):
            list(itertools.islice(iterator, 1000))  # what is read after closing is an error, no crash
        del iterator, opened
    gc.collect()
    assert readers
    assert not [r for r in readers if r() is not None]


def test_a_map_fn_that_fails_is_told(folder: Path) -> None:
    def broken(x: Any, y: Any) -> Any:
        raise ValueError("in the map")

    with (
        pytest.raises(ValueError, match="in the map"),
        open_training(source_of(folder, map_fn=broken), find_shards(source_of(folder)), InputContext(0, 1, 0)),
    ):
        pass
    with (
        pytest.raises(UserError, match="names are for job files"),
        open_training(source_of(folder, map_fn="m.py:f"), find_shards(source_of(folder)), InputContext(0, 1, 0)),
    ):
        pass


def test_feed_counts_the_waiting_and_ends_its_thread() -> None:
    def slow() -> Iterator[int]:
        for k in range(5):
            time.sleep(0.05)
            yield k

    with Feed(slow()) as feed:
        assert list(feed) == list(range(5))
        assert feed.waited_secs > 0.15
        assert list(feed) == []
    assert not feed._thread.is_alive()

    def endless() -> Iterator[int]:
        while True:
            yield 1

    with Feed(endless()) as feed:
        wait_for(feed._queue.full, "all that is held is there")
        assert next(feed) == 1
    assert not feed._thread.is_alive()

    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("reading")

    with Feed(failing()) as feed:
        assert next(feed) == 1
        with pytest.raises(KeyError):
            next(feed)


def test_shares_of_time_leave_out_the_first_step_and_what_is_not_training() -> None:
    now = 0.0
    times = TimeShares(lambda: now)
    assert (times.take(), times.input_mean) == (None, None)
    now += 100
    times.step(8, 50)
    for _ in range(2):
        now += 1
        times.step(8, 50.25, step_secs=0.5, communication_secs=0.125, apply_secs=0.125)
    taken = times.take()
    assert taken == {
        "examples_per_sec": 8,
        "own_secs": 0.75,
        "input": 0.125,
        "compute": 0.25,
        "communication": 0.125,
        "apply": 0.125,
        "checkpoint": 0,
        "other": 0.375,
    }
    times.checkpoint(2)
    now += 1000
    times.resume(60)
    now += 2
    times.step(8, 61, step_secs=1)
    taken = times.take()
    assert taken is not None
    assert (taken["input"], taken["checkpoint"], taken["compute"], taken["other"]) == (0.25, 0.5, 0.25, 0)
    assert times.input_mean == (0.25 + 1) / 4


def batch_of(reader: BatchReader, step: int, size: int) -> list[np.ndarray]:
    number, place = divmod(step, reader.groups.steps)
    return [array[place * size : (place + 1) * size] for array in reader.groups.group(number)]


def test_memory_limits(folder: Path) -> None:
    source = source_of(folder, shuffle="block")
    shards = find_shards(source)
    with (
        pytest.raises(UserError, match=r"0\.h5: shuffle 'block' keeps two windows .* more ranks or nodes"),
        training_reader(source, shards, 0, 1, resources=ReadResources(1, 10)),
    ):
        pass
    with training_reader(source_of(folder), shards, 0, 1, resources=ReadResources(1, 10)) as reader:
        assert "shuffle 'global' decodes a chunk for each row" in reader.notes[0]
        rows = batch_of(reader, 3, source.batch_size)[1][:, 0]
        assert reader.sampler is not None
        assert rows.tolist() == reader.sampler.rows_at(3).tolist()
    plain = [shards.paths[0]]
    source = source_of(folder, shards=plain, shuffle="block")
    with training_reader(source, find_shards(source), 0, 1, resources=ReadResources(1, 10)) as reader:
        assert "do not fit into the memory" in reader.notes[0]
        assert len(batch_of(reader, 2, source.batch_size)[0]) == 5
    with training_reader(source, find_shards(source), 0, 1, resources=ReadResources(1, 1 << 30)) as reader:
        assert reader.notes == ()


def test_fewer_rows_than_a_global_batch(folder: Path) -> None:
    source = source_of(folder, batch_size=32)
    with (
        pytest.raises(UserError, match="63 rows are fewer than one global batch"),
        training_reader(source, find_shards(source), 0, 2),
    ):
        pass


def test_labels_are_looked_at(tmp_path: Path) -> None:
    for i, (labels, dtype) in enumerate((([0, 1, 2], "i8"), ([3, 9, 255], ">i8"))):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x"] = np.zeros((3, 2))
            file["y"] = np.array(labels, dtype)
    shards = find_shards(HDF5Input(str(tmp_path / "*.h5")))
    assert label_ranges(shards, {"z": None}, 0, 1, 1) == [], "only labels that matter are read"
    ranges = [r for rank in range(2) for r in label_ranges(shards, {"y": 255}, rank, 2, 1)]
    assert [(Path(r.path).name, r.dataset, r.low, r.high) for r in ranges] == [("0.h5", "y", 0, 2), ("1.h5", "y", 3, 9)]
    check_classes(ranges, "y", 10)
    check_classes(ranges, "z", 2)
    with pytest.raises(UserError, match=r"1\.h5: dataset 'y' has the value 9, but the model's output has 9 classes"):
        check_classes(ranges, "y", 9)
    with pytest.raises(UserError, match="value 255"):
        check_classes(label_ranges(shards, {"y": None}, 0, 1, 1), "y", 10)
    for values, said in (([0, -1], "value -1"), ([0, np.nan], "value nan"), ([0, 2.5], "value 2.5")):
        with h5py.File(tmp_path / "other.h5", "w") as file:
            file["x"], file["y"] = np.zeros((2, 2)), np.array(values)
        other = find_shards(HDF5Input(str(tmp_path / "other.h5")))
        with pytest.raises(UserError, match=said):
            check_classes(label_ranges(other, {"y": None}, 0, 1, 1), "y", 10)


def test_which_labels_are_classes() -> None:
    import keras

    class Own(keras.losses.SparseCategoricalCrossentropy):
        pass

    class OwnLoss(keras.Model):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)

    def model(loss: Any, kind: Any = keras.Model) -> Any:
        x = keras.Input((3,))
        built = kind(x, keras.layers.Dense(4, name="out")(x))
        built.compile("sgd", loss)
        return built

    sparse = keras.losses.SparseCategoricalCrossentropy(ignore_class=255)
    assert sparse_classes(model(sparse), ["y"]) == {"y": (4, 255)}
    assert sparse_classes(model("sparse_categorical_crossentropy"), ["y"]) == {"y": (4, None)}
    assert sparse_classes(model([sparse]), ["y"]) == {"y": (4, 255)}
    for loss in ("mse", Own(), "categorical_crossentropy"):
        assert sparse_classes(model(loss), ["y"]) == {}
    assert sparse_classes(model(sparse, OwnLoss), ["y"]) == {}
    x = keras.Input((3,))
    several = keras.Model(x, {"a": keras.layers.Dense(4)(x), "b": keras.layers.Dense(1)(x)})
    several.compile("sgd", {"a": sparse, "b": "mse"})
    assert sparse_classes(several, ["b", "a"]) == {"a": (4, 255)}


def test_an_order_is_known_again_by_its_shards_and_blocks(folder: Path) -> None:
    shards = find_shards(source_of(folder))
    same = order_of(source_of(folder), find_shards(source_of(folder)))
    assert order_of(source_of(folder), shards) == same
    assert order_of(source_of(folder, seed=3), shards) != same
    assert order_of(source_of(folder, shuffle="block"), shards).shards != same.shards
    grown = replace(shards, file_bytes=(shards.file_bytes[0], shards.file_bytes[1] + 1))
    assert order_of(source_of(folder), grown) != same


def test_reading_ahead_keeps_to_the_memory_there_is(folder: Path) -> None:
    source = source_of(folder)
    shards = find_shards(source)
    for limit, ahead in ((None, 8), (1 << 30, 8), (16_000, 1)):
        with training_reader(source, shards, 0, 1, resources=ReadResources(8, limit)) as reader:
            assert reader.groups.ahead == ahead


def test_shards_that_changed_are_told(folder: Path) -> None:
    shards = find_shards(source_of(folder))
    began, record = record_of(shards), folder / "data.json"
    check_record(began, shards, record)
    moved = [{**began[0], "file": "other.h5"}, began[1]]
    with pytest.raises(UserError, match=r"0\.h5: the job began with other\.h5 in its place; begin a new job-dir, or"):
        check_record(moved, shards, record)
    with pytest.raises(UserError, match=r"1\.h5: has changed since the job began: 32 rows in \d+ bytes then, 33 rows"):
        check_record([began[0], {**began[1], "rows": 32}], shards, record)
    with pytest.raises(UserError, match="began with 1 shards, now there are 2"):
        check_record(began[:1], shards, record)


def test_a_wait_for_input_counts_where_no_step_runs_meanwhile() -> None:
    now = 0.0
    times = TimeShares(lambda: now)
    times.resume(10)
    now += 2
    times.step(8, 11, step_secs=1.75, gap_secs=0.25)
    assert times.take() == {
        "examples_per_sec": 4,
        "own_secs": 1.75,
        "input": 0.125,
        "compute": 0.875,
        "communication": 0,
        "apply": 0,
        "checkpoint": 0,
        "other": 0,
        "gap": 0.125,
    }
    now += 2
    times.step(8, 12, step_secs=1)
    taken = times.take()
    assert taken is not None
    assert "gap" not in taken, "it is not known"
    assert taken["input"] == 0.5

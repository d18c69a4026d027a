"""Batches of texts and of rows of different lengths: padded, in the order of rows, and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train import HDF5Input, UserError
from hpc_train.data import write_shards
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import BEGINNING, ReadResources
from hpc_train.data.loading.tf_dataset import InputContext, open_evaluation, open_training
from hpc_train.data.sampling.sampler import DataOrder, DataProgress

ROWS = 60
WORDS = [f"nº {k}" * (k % 3) for k in range(ROWS)]
TOKENS = [np.arange(k, k + (7 * k) % 11, dtype=np.int32) for k in range(ROWS)]
LENGTHS = np.array([len(row) for row in TOKENS])


@pytest.fixture
def shards(tmp_path: Path) -> str:
    points = [np.stack([row, -row], axis=1).astype(np.float32) for row in TOKENS]
    columns = {"word": WORDS, "tokens": TOKENS, "points": points, "fixed": np.array(WORDS), "key": np.arange(ROWS)}
    write_shards(tmp_path / "t", columns, 3)
    return str(tmp_path / "t-*.h5")


def source(shards: str, **options: Any) -> HDF5Input:
    given = {"batch_size": 8, "label": "key", "pad": {"tokens": -1, "points": {"value": 0.5, "length": 4}}, **options}
    return HDF5Input(shards, features=("word", "fixed", "tokens", "points", "tokens/length"), **given)


def check(features: dict[str, Any], keys: np.ndarray) -> None:
    """A batch has the rows `keys`, whole and padded."""
    rows = {name: tensor.numpy() for name, tensor in features.items()}
    assert rows["word"].tolist() == rows["fixed"].tolist() == [WORDS[k].encode() for k in keys]
    assert rows["tokens_length"].tolist() == LENGTHS[keys].tolist()
    assert rows["tokens"].shape == (len(keys), LENGTHS[keys].max())
    assert rows["points"].shape == (len(keys), 4, 2)
    for i, k in enumerate(keys):
        length = LENGTHS[k]
        assert rows["tokens"][i].tolist() == [*TOKENS[k], *[-1] * (rows["tokens"].shape[1] - length)]
        assert rows["points"][i, :length, 0].tolist() == TOKENS[k][:4].tolist()
        assert (rows["points"][i, length:] == 0.5).all()


@pytest.mark.parametrize("shuffle", ["global", "block", "none"])
def test_batches_are_padded_in_the_order_of_rows(shards: str, shuffle: str) -> None:
    given = source(shards, shuffle=shuffle, epochs=1)
    with open_training(given, find_shards(given), InputContext(0, 1, 0), resources=ReadResources(2)) as opened:
        batches = [(features, label.numpy()) for features, label in opened.dataset]
    for features, keys in batches:
        check(features, keys)
    seen = np.concatenate([keys for _, keys in batches])
    assert len(set(seen)) == len(seen) == 56
    assert shuffle != "none" or seen.tolist() == list(range(56))


def test_resumed_batches_are_those_that_would_have_come(shards: str) -> None:
    given = source(shards, shuffle="block", epochs=3, seed=4)
    found = find_shards(given)

    def keys(rank: int, progress: DataProgress) -> list[list[int]]:
        with open_training(given, found, InputContext(rank, 2, 0), progress) as opened:
            return [label.numpy().tolist() for _, label in opened.dataset]

    for rank in (0, 1):
        with open_training(given, found, InputContext(rank, 2, 0)) as opened:
            later = opened.progress_at(5)
        assert keys(rank, later) == keys(rank, DataProgress())[5:]


def test_rows_of_like_length_go_together_and_resume(shards: str) -> None:
    given = source(shards, shuffle="block", epochs=2, bucket_by="tokens", batch_size=4)
    found = find_shards(given)

    def read(progress: DataProgress = BEGINNING) -> list[list[int]]:
        with open_training(given, found, InputContext(0, 1, 0), progress) as opened:
            batches = [(features, label.numpy()) for features, label in opened.dataset]
        for features, keys in batches:
            check(features, keys)
        return [keys.tolist() for _, keys in batches]

    whole = read()
    assert sorted(key for batch in whole[:15] for key in batch) == list(range(ROWS))
    for step in (1, 7, 20):
        with open_training(given, found, InputContext(0, 1, 0)) as opened:
            progress = opened.progress_at(step)
            assert opened.order != open_order(replace(given, bucket_by=None), found)
        assert read(progress) == whole[step:]


def open_order(given: HDF5Input, found: ShardSet) -> DataOrder | None:
    with open_training(given, found, InputContext(0, 1, 0)) as opened:
        return opened.order


def test_what_rows_are_put_together_by_is_checked(shards: str) -> None:
    with pytest.raises(UserError, match=r"`bucket_by` puts rows of like length together .* is 'global'"):
        source(shards, bucket_by="tokens")
    with pytest.raises(UserError, match="`bucket_by` names 'key', which is no feature or label of rows of different"):
        find_shards(source(shards, shuffle="block", bucket_by="key"))


def test_evaluations_have_every_row_and_map_fn_gets_padded_batches(shards: str) -> None:
    def longest(features: Any, label: Any) -> Any:
        import tensorflow as tf

        return {**features, "width": tf.shape(features["tokens"])[1]}, label

    given = source(shards, map_fn=longest)
    with open_evaluation(given, find_shards(given), InputContext(0, 1, 0), None) as opened:
        batches = list(opened.dataset)
    for features, label in batches:
        assert int(features.pop("width")) == LENGTHS[label.numpy()].max()
        check(features, label.numpy())
    assert np.concatenate([label.numpy() for _, label in batches]).tolist() == list(range(ROWS))


def test_a_single_feature_is_a_tensor_and_labels_are_padded_too(shards: str) -> None:
    given = HDF5Input(shards, features="word", label="tokens", pad={"tokens": 0}, shuffle="none", batch_size=4)
    with open_training(given, find_shards(given), InputContext(0, 1, 0)) as opened:
        words, tokens = next(iter(opened.dataset))
        assert opened.dataset.element_spec[0].dtype.name == "string"
        assert opened.dataset.element_spec[1].shape.as_list() == [4, None]
    assert words.numpy().tolist() == [word.encode() for word in WORDS[:4]]
    assert tokens.numpy()[1].tolist()[:7] == TOKENS[1].tolist()


def test_a_bootstrap_is_an_order_of_its_own_and_resumes(shards: str) -> None:
    given = source(shards, epochs=2, batch_size=4, bootstrap=3)
    found = find_shards(given)

    def read(given: HDF5Input, progress: DataProgress = BEGINNING) -> list[list[int]]:
        with open_training(given, found, InputContext(0, 1, 0), progress) as opened:
            return [keys.numpy().tolist() for _, keys in opened.dataset]

    whole = read(given)
    assert len(whole) == len(read(replace(given, bootstrap=None)))
    assert len({key for batch in whole for key in batch}) < ROWS
    with open_training(given, found, InputContext(0, 1, 0)) as opened:
        assert read(given, opened.progress_at(7)) == whole[7:]
    assert len({open_order(replace(given, bootstrap=seed), found) for seed in (None, 3, 4)}) == 3

"""Whatever a checkpoint of TensorFlow holds: variables or one sentence, and TensorFlow, which would abort, lives."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from hpc_train.errors import UserError
from hpc_train.warm_start.checkpoint_index import _FOOTER_BYTES, _numbers
from hpc_train.warm_start.source import read_source
from tests.hostile.fuzz import CHANGES, changed, count, in_a_child, within_limits
from tests.support import REPOSITORY, SOAK, examples

NAME = "model.ckpt-20"


def sliced(folder: Path) -> str:
    """Makes a checkpoint with two slices of one variable, and text."""
    import tensorflow as tf

    folder.mkdir()
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{NAME}"\n')
    tf.raw_ops.SaveV2(
        prefix=str(folder / NAME),
        tensor_names=["table", "table", "words"],
        shape_and_slices=["5 3 0,4:0,3", "5 3 4,1:0,3", ""],
        tensors=[tf.zeros((4, 3)), tf.ones((1, 3)), tf.constant(["a"])],
    )
    return ""


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints to be changed: of a canned estimator, and one in slices."""
    import tensorflow  # noqa: F401 - here, once, for all children

    folder = tmp_path_factory.mktemp("wholes")
    assert not in_a_child([folder / "sliced"], sliced)
    assert read_source(folder / "sliced").arrays["table"].sum() == 3
    return [REPOSITORY / "tests/data/estimator_2_15/dnn_linear_combined_classifier", folder / "sliced"]


def forged(index: bytes, changes: Any) -> bytes:
    """An index whose entries are changed, of the same length, with the right digest."""
    (end, *_), _ = _numbers(index, len(index) - _FOOTER_BYTES, 4)  # of the one block of entries, which are at its begin
    entries = changed(index[: end - 5], changes)[: end - 5].ljust(end - 5, b"\0") + index[end - 5 : end - 4]
    return entries + struct.pack("<I", masked_crc32c(entries)) + index[end:]


def taken(folder: Path) -> str:
    """What is wrong with how a checkpoint is read; "" for nothing."""
    try:
        source = read_source(folder)
    except UserError as error:
        return "" if len(str(error)) < 2000 and "\n" not in str(error) else str(error)[:500]
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:500]
    stored = sum(path.stat().st_size for path in folder.glob(f"{NAME}.data-*"))
    return "" if sum(array.nbytes for array in source.arrays.values()) <= stored else "more than the file has"


@settings(
    max_examples=examples(8),
    derandomize=SOAK == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.sampled_from(["checkpoint", "index", "data", "forged"]), CHANGES), min_size=40, max_size=80),
    st.integers(0, 1),
)
def test_a_checkpoint_is_taken_or_refused_whatever_its_files_hold(
    wholes: list[Path], tmp_path: Path, batch: list[Any], which: int
) -> None:
    folder, paths = tmp_path / "changed", []
    shutil.rmtree(folder, ignore_errors=True)
    parts = {"index": f"{NAME}.index", "data": f"{NAME}.data-00000-of-00001", "checkpoint": "checkpoint"}
    for number, (part, changes) in enumerate(batch):
        paths.append(Path(shutil.copytree(wholes[which], folder / str(number))))
        file = paths[-1] / parts.get(part, parts["index"])
        data = file.read_bytes()
        file.write_bytes(forged(data, changes) if part == "forged" else changed(data, changes))
    count("TensorFlow checkpoints", len(batch) - 1)
    (tmp_path / "outside").mkdir(exist_ok=True)
    with within_limits("TensorFlow checkpoints", tmp_path / "outside"):
        assert not (wrong := in_a_child(paths, taken)), wrong

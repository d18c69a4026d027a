"""ShardedEmbedding on real ranks: what it trains is what one process would."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.telemetry.json_files import read_json
from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "sharded_embedding.py"


@pytest.mark.parametrize(
    ("ranks", "how"), [(1, ["mpi"]), (2, ["horovod"]), (3, ["mpi", "light"]), (4, ["mpi"]), (4, ["horovod", "light"])]
)
def test_a_table_in_parts_trains_as_a_whole_one(ranks: int, how: list[str], tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAM, *how], tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_evaluate_it_together_though_their_batches_are_uneven(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [REPOSITORY / "tests" / "parallel" / "programs" / "sharded_evaluation.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("each rank evaluates all rows, with its part of the model" in done.stderr) == (ranks > 1)
    assert "one rank evaluates all rows" not in done.stderr
    assert done.stdout.count("is fine") == ranks


def test_jobs_come_to_the_same_as_with_a_whole_table_and_go_on_with_other_ranks(tmp_path: Path) -> None:
    program = REPOSITORY / "tests" / "parallel" / "programs" / "sharded_embedding_jobs.py"
    for ranks, what in ((0, "whole"), (4, "parts")):
        done = run_ranks(ranks, [program, tmp_path, what], tmp_path, timeout=1800)
        assert done.returncode == 0, done.stderr
    assert done.stdout.count(" fine") == 7


OUTSIDE = """
import sys
import keras, numpy as np, tensorflow as tf
import hpc_train as ht

def build_model():
    tokens = keras.Input((2,), dtype="int64")
    x = keras.layers.Flatten()(ht.parallel.ShardedEmbedding(9, 4, name="users")(tokens))
    model = keras.Model(tokens, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    return model

def batches(context):
    ids = np.zeros((6, 2), np.int64)
    ids[4, 1] = 9 * context.input_pipeline_id  # in the third batch of the second rank
    return tf.data.Dataset.from_tensor_slices((ids, np.zeros((6, 1)))).batch(2)

config = ht.RunConfig(sys.argv[1], allreduce="mpi")
ht.train_and_evaluate(ht.Estimator(build_model, config), ht.TrainSpec(batches, max_steps=3), ht.EvalSpec(batches))
"""


def test_ids_outside_of_the_table_end_all_ranks_by_one_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OUTSIDE)
    done = run_ranks(2, [tmp_path / "program.py", tmp_path / "job"], tmp_path)
    said = (
        "hpc-train: error: training step 3: users (ShardedEmbedding): 1 of 4 ids are outside its table, which has the "
        "rows 0 to 8: [9]; mend the data, or give the layer more rows\n"
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(said) == 1 and "Traceback" not in done.stderr, done.stderr
    assert read_json(tmp_path / "job" / "status.json")["error"]["rank"] == 1

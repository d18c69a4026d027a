"""What accumulating gradients takes, in processes of its own."""

from __future__ import annotations

from pathlib import Path

from tests.support import run_ranks

MEMORY = """
import re, sys
from pathlib import Path
import keras, numpy as np, tensorflow as tf
from hpc_train.engine.step_report import Flags
from hpc_train.engine.train_step import make_train_step
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
parts = [keras.layers.Dense(256, activation="gelu") for _ in range(8)]
model = keras.Sequential([keras.Input((256,)), *parts, keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.optimizer.build(model.trainable_variables)
step = make_train_step(model, GradientAllreduce(OneRank()), [], False, accumulate_steps=int(sys.argv[1]))
batch = tf.zeros([8192, 256]), tf.zeros([8192, 1])
def peak():  # of this program alone: what getrusage gives counts the process that it was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
step(batch, Flags())()
print("grown by", peak() - before)
"""


def test_memory_is_that_of_a_piece(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text(MEMORY)
    grown = {}
    for pieces in (1, 8):
        done = run_ranks(0, ["memory.py", pieces], tmp_path, anew=True, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
        grown[pieces] = int(done.stdout.split()[-1])
    print(f"peak memory grown by {grown} KiB")
    assert grown[8] < 0.4 * grown[1]

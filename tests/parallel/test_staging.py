"""Shards staged on a node by two ranks of it: the weights stay the same, and nothing is left however the job ends."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_train.telemetry.units import size
from tests.ranks import hpc_train, train_in_turn
from tests.support import LIMIT_SECS, Job, environment, is_gone, mpirun, variables, wait_for

MakeJob = Callable[..., Job]

WIDTH, ROWS = 2048, 2400
"""A shard of 20 MB: what takes less than 32 MiB in all is kept in memory, and read once."""
STEPS, BREAK_AT = 80, 20
"""An epoch is 37 steps."""

MODEL = """
import keras

def build_model(params):
    model = keras.Sequential([keras.Input((2048,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.001), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""

HOOK = """
import os
import threading
from pathlib import Path

import hpc_train as ht
from tests.support import wait_for

FOLDER = Path(FOLDER_HERE)

def copies():
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return {line[4] for line in maps if len(line) > 6 and "/node/" in line[5] and line[6] == "(deleted)"}

class Breaks(ht.Hook):
    "Once both ranks read from copies of both shards, the shards are overwritten in place."

    def begin(self, context):
        self.rank = context.rank

    def after_step(self, step, loss):
        if step != BREAK_AT:
            return
        wait_for(lambda: len(copies()) == 2, "both shards are mapped from copies")
        (FOLDER / f"staged-{self.rank}").write_text(f"{os.getpid()} {sorted(copies())}")
        wait_for(lambda: len(list(FOLDER.glob("staged-*"))) == 2, "the other rank, too")
        if self.rank == 0 and not HOLD:
            for path in (FOLDER / "data").glob("train-*.h5"):
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
            (FOLDER / "broken").touch()
        wait_for((FOLDER / "broken").exists, "the shards are broken")

class Waits(ht.Hook):
    "Until there is nothing left to copy."

    def after_step(self, step, loss):
        if step == BREAK_AT:
            wait_for(lambda: "hpc_train-stage" not in {t.name for t in threading.enumerate()}, "what fits is copied")

def make():
    return Breaks() if FOLDER.name in ("staged", "killed") else Waits()
"""


def staging_job(
    make_job: MakeJob, name: str, node: Path | None, hook: bool = False, hold: bool = False, **run: Any
) -> Job:
    stage = {"stage": "node", "stage_dir": str(node)} if node else {}
    job = make_job(
        name,
        model=MODEL,
        data={"train": {"batch_size": 64, **stage}},
        run={"save_checkpoints_steps": STEPS, **run},
        train={"max_steps": STEPS, "hooks": ["hook.py:make"] if hook else []},
    )
    text = HOOK.replace("FOLDER_HERE", repr(str(job.folder))).replace("BREAK_AT", str(BREAK_AT))
    (job.folder / "hook.py").write_text(text.replace("HOLD", str(hold)))
    for number, part in enumerate(("train-0", "train-1", "test-0")):
        random, rows = np.random.default_rng(number), ROWS if part != "test-0" else 32
        with h5py.File(job.folder / "data" / f"{part}.h5", "w") as file:
            file["x"] = random.normal(size=(rows, WIDTH)).astype(np.float32)
            file["y"] = random.integers(0, 4, rows)
    return job


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs with room for one of the two shards; the test is skipped where mounting is refused."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, timeout=LIMIT_SECS).returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=LIMIT_SECS)


def test_ranks_train_to_the_bit_alike_from_copies_also_where_not_all_fit(
    make_job: MakeJob, node: Path, small_node: Path
) -> None:
    plain = staging_job(make_job, "plain", None)
    staged = staging_job(make_job, "staged", node, hook=True)
    small = staging_job(make_job, "small-job", small_node, hook=True)
    of_worker = staging_job(make_job, "of-worker", node, hook=True, strategy="async", report=True)
    missing = staging_job(make_job, "missing", node / "none")
    done = train_in_turn([plain, staged, small, of_worker, missing], 2)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "stage_dir: " in done.stderr, done.stderr
    assert "is no folder of this node" in done.stderr, done.stderr
    assert not missing.job_dir.exists(), "refused before anything is written"
    outputs = done.stdout.split("next job\n")
    assert "stage:" not in outputs[0]
    assert "stage: 2 of 2 shards" in outputs[1]
    assert "the others are read where they are" in outputs[2]
    assert "rank 1: stage: 2 of 2 shards" in done.stderr, "the worker copies, not the chief"
    total = sum(path.stat().st_size for path in (plain.folder / "data").glob("train-*.h5"))
    for job, folder, copied in ((staged, node, total), (small, small_node, total // 2), (of_worker, node, total)):
        found = json.loads((job.job_dir / "status.json").read_text())["staged"]
        assert found.pop("secs") > 0
        assert found == {"folder": str(folder), "bytes": copied, "of_bytes": total, "nodes": 1}, job.folder
    page = html.unescape((of_worker.job_dir / "report.html").read_text())
    assert f"1 node, in {node}, in " in page, "what the worker has told at the end is in the report, too"
    said = hpc_train(["describe", str(small.job_dir)], 0, small.folder, COLUMNS="200").stdout
    assert f"{size(total // 2)} of {size(total)} on 1 node, in {small_node}, in " in said
    expected = variables(plain.job_dir, STEPS)
    for job in (staged, small):
        for name, value in variables(job.job_dir, STEPS).items():
            assert np.array_equal(value, expected[name]), (job.folder, name)
    first, second = ((staged.folder / f"staged-{rank}").read_text().split(" ", 1) for rank in (0, 1))
    assert first[1] == second[1], "the ranks of a node share one copy"
    assert list(node.iterdir()) == []
    assert list(small_node.iterdir()) == []


def test_nothing_is_left_when_all_ranks_are_killed(make_job: MakeJob, node: Path) -> None:
    job = staging_job(make_job, "killed", node, hook=True, hold=True)
    command = [sys.executable, "-m", "hpc_train", "train", str(job.file), "--job-dir", str(job.job_dir)]
    with subprocess.Popen(
        [*mpirun(2), *command], cwd=job.folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            marks = [job.folder / f"staged-{rank}" for rank in (0, 1)]
            wait_for(
                lambda: process.poll() is not None or all(m.exists() and m.read_text() for m in marks), "both staged"
            )
            assert process.poll() is None, "the job waits to be killed"
            assert list(node.iterdir()) == []
            pids = [int(mark.read_text().split()[0]) for mark in marks]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: all(map(is_gone, pids)), "the ranks are gone")
            process.wait(LIMIT_SECS)
        finally:
            process.kill()
    assert list(node.iterdir()) == []

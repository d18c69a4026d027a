"""A disk that is full, over quota, read-only or failing: the job says so, keeps what it has, and no rank hangs."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import pytest

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.telemetry.units import size
from tests.faults.support import Injector, leftovers
from tests.ranks import train
from tests.support import LIMIT_SECS, Job, variables

MakeJob = Callable[..., Job]

FILLS = """
import os
from pathlib import Path
import keras, tensorflow as tf

steps = iter(range(1, 10**6))
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")

def fill(path):
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

class Fills(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            tf.py_function(self.at, [], [])
        return x

    def at(self):
        step, filler = next(steps), Path(PARAMS["disk"]) / "filler"
        if rank == "0" and PARAMS["disk"]:
            if step == PARAMS["fill"]:
                fill(filler)
            if step == PARAMS["free"]:
                filler.unlink()

def build_model(params):
    global PARAMS
    PARAMS = params
    model = keras.Sequential([keras.Input((8,)), Fills(), keras.layers.Dense(2000), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


@dataclass(frozen=True)
class TinyDisk:
    """A file system of a few MB; `mounted`: a real one, else a folder on which system calls have to be made to fail."""

    folder: Path
    mounted: bool

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True, timeout=LIMIT_SECS)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[TinyDisk]:
    """A tmpfs; where mounting is refused (no root, a container without the right), an ordinary folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, timeout=LIMIT_SECS).returncode == 0
    try:
        yield TinyDisk(folder, mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True, timeout=LIMIT_SECS)


def full(disk: TinyDisk, steps: range, injector: Injector) -> tuple[dict[str, object], dict[str, str]]:
    """A full disk from the middle of one interval to the middle of another: the model's params, and the environment.

    On a real disk the model fills it; else writing the checkpoints of these `steps`, the status and metrics fails.
    """
    if disk.mounted:
        return {"disk": str(disk.folder), "fill": steps.start - 5, "free": steps.stop - 5}, {}
    rules = [f"write:/.step-{step:08d}.:1:*:ENOSPC" for step in steps]
    return {"disk": ""}, injector.env(*rules, "write:/run/*status.json:2:*:ENOSPC", "write:/metrics.jsonl:4:*:ENOSPC")


def whole_steps(job_dir: Path) -> list[int]:
    """The steps of the checkpoints, all of which must be whole, with nothing half-written beside them."""
    manager = CheckpointManager(job_dir / "checkpoints", Retention(0))
    for step in manager.steps():
        manager.check(step, digests=True)
    assert not leftovers(job_dir / "checkpoints")
    assert not manager.set_aside()
    return manager.steps()


def told(text: str, *words: str) -> list[str]:
    """The lines of `text` that have all `words`."""
    return [line for line in text.splitlines() if all(word in line for word in words)]


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_full_disk_ends_the_job(make_job: MakeJob, tiny_disk: TinyDisk, injector: Injector, ranks: int) -> None:
    params, env = full(tiny_disk, range(20, 1000, 10), injector)
    job = make_job(model=FILLS, params=params, train={"max_steps": 900}, run={"save_summary_steps": 1})
    job_dir = tiny_disk.folder / "run"
    done = train(job, ranks, job_dir, **env)
    assert done.returncode == 9, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    errors = told(done.stderr, "hpc-train: error: ")
    assert len(errors) == 1, done.stderr
    (error,) = errors
    assert f"{job_dir}/checkpoints/.step-00000020." in error
    assert os.strerror(errno.ENOSPC) in error
    assert "errno 28" in error
    nbytes = sum(array.nbytes for array in variables(job_dir, 10).values())
    assert f"needed {size(nbytes)}; " in error, error
    place = tiny_disk.folder if tiny_disk.mounted else "/"
    assert re.search(rf"; \d+(\.\d)? [kMGT]?B free on {place}", error), error
    assert "step 10 stays" in error
    assert error.endswith("; start the job again when that is mended")
    assert whole_steps(job_dir) == [10]
    assert all(json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()[:-1])
    json.loads((job_dir / "status.json").read_text())

    if tiny_disk.mounted:
        (tiny_disk.folder / "filler").unlink()
        tiny_disk.remount("ro")
        done = train(job, ranks, job_dir)
        assert done.returncode == 2, done.stderr
        assert len(told(done.stderr, "hpc-train: error: ", str(job_dir), "cannot be written")) == 1, done.stderr
        tiny_disk.remount("rw")
        assert whole_steps(job_dir) == [10]


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_job_can_go_on_while_the_disk_is_full(
    make_job: MakeJob, tiny_disk: TinyDisk, injector: Injector, ranks: int
) -> None:
    params, env = full(tiny_disk, range(20, 40, 10), injector)
    run = {"save_summary_steps": 1, "on_save_error": "continue"}
    job = make_job(model=FILLS, params=params, train={"max_steps": 60}, run=run)
    job_dir = tiny_disk.folder / "run"
    done = train(job, ranks, job_dir, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    for step in (20, 30):
        lines = told(done.stdout, "warning: ", f"checkpoints/.step-{step:08d}.", os.strerror(errno.ENOSPC), "free")
        assert len(lines) == 1, done.stdout
    assert len(told(done.stdout, "warning: ", f"{job_dir}", "cannot be written")) == 1, done.stdout
    assert whole_steps(job_dir) == [10, 40, 50, 60]
    if tiny_disk.mounted:
        assert json.loads((job_dir / "status.json").read_text())["state"] == "succeeded"
        records = [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines() if line]
        assert records[-1]["step"] == 60


def test_quota_a_passing_error_and_a_last_checkpoint_that_fails(make_job: MakeJob, injector: Injector) -> None:
    run = {"on_save_error": "continue"}
    job = make_job(train={"max_steps": 40}, run=run, eval={"start_delay_secs": 1000})
    rules = ["write:/.step-00000020.:1:*:EDQUOT", "fsync:/.step-00000030.:1:2:EIO", "mkdir:/.step-00000040.:1:*:EDQUOT"]
    done = train(job, 2, **injector.env(*rules, rank=0))
    assert done.returncode == 9, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    quota = os.strerror(errno.EDQUOT)
    assert len(told(done.stdout, "warning: ", "/.step-00000020.", quota, "step 10 stays")) == 1, done.stdout
    assert len(told(done.stdout, "/.step-00000030.", os.strerror(errno.EIO), "trying again in")) == 2, done.stdout
    assert len(told(done.stderr, "hpc-train: error: ", "/.step-00000040.", quota, "step 30 stays")) == 1, done.stderr
    assert whole_steps(job.job_dir) == [10, 30]
    status = json.loads((job.job_dir / "status.json").read_text())
    assert status["state"] == "failed"
    assert quota in status["error"]["message"]
    done = train(job, 2)
    assert done.returncode == 0, done.stderr
    assert "going on from step 30 " in done.stdout
    assert whole_steps(job.job_dir) == [10, 30, 40]


def test_a_job_dir_that_becomes_read_only(make_job: MakeJob, injector: Injector) -> None:
    """A file system that turned read-only while files are open: what is written to them fails, too."""
    job = make_job(train={"max_steps": 900}, run={"save_summary_steps": 1})
    rules = ["mkdir:/run/checkpoints/.step-00000020.:1:*:EROFS", "open:/run/.status.json:2:*:EROFS",
             "write:/run/metrics.jsonl:12:*:EROFS", "open:/run/logs/:1:*:EROFS"]  # fmt: skip
    done = train(job, 2, **injector.env(*rules))
    assert done.returncode == 9, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert len(told(done.stderr, "hpc-train: error: ", "/.step-00000020.", os.strerror(errno.EROFS))) == 1, done.stderr
    assert whole_steps(job.job_dir) == [10]


def test_read_errors_of_shards(make_job: MakeJob, injector: Injector) -> None:
    """While training, on one rank of two: one that passes is waited out, one that stays ends all with its name."""
    job = make_job(
        train_rows=[40_000, 40_000],
        data={"train": {"batch_size": 200, "shuffle": "block"}},
        run={"save_checkpoints_steps": 1000},
        train={"max_steps": 300},
        eval={"start_delay_secs": 1000},
    )
    for path in (job.folder / "data").glob("train-*.h5"):  # compressed chunks are read one by one, as they are needed
        with h5py.File(path, "a") as file:
            for name in ("x", "y"):
                array = file[name][()]
                del file[name]
                file.create_dataset(name, data=array, chunks=(500, *array.shape[1:]), compression="gzip")
    done = train(job, 2, **injector.env("read:/train-1.h5:150:2:ESTALE", rank=1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(injector.struck()) == 2
    (job.job_dir / "checkpoints").rename(job.folder / "done")
    done = train(job, 2, **injector.env("read:/train-1.h5:150:*:EIO", rank=1))
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(injector.struck()) >= 6
    assert done.stderr.count("rank 1 failed:") == 1, done.stderr
    assert f"[Errno {errno.EIO}] EIO: {os.strerror(errno.EIO)} (6 tries): " in done.stderr
    assert "train-1.h5" in done.stderr
    status = json.loads((job.job_dir / "status.json").read_text())
    assert (status["state"], status["error"]["rank"]) == ("failed", 1)

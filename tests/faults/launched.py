"""`hpc-train launch` while it runs, and a model that brings down a rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.forks import forks
from tests.support import Job, environment, wait_for

MPIRUN = -1
STUCK = "time.sleep(1000)"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"

_FAULTY = """
import os, signal, time
from pathlib import Path
import keras, tensorflow as tf

rank, restarts = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)), int(os.environ.get("HPC_TRAIN_RESTARTS", 0))
calls = 0

def note(name):
    with open(f"{name}.tmp", "w") as file:
        file.write(str(time.time()))
    os.rename(f"{name}.tmp", name)

class Faulty(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            tf.py_function(self.step, [], [])
        return x

    def step(self):
        global calls
        calls += 1
        if calls == 1 and rank == @FIRST@:
            note(f"began-{restarts}")
        time.sleep(@PAUSE@)
        if rank == @RANK@ and calls == @CALL@ and restarts in @RUNS@:
            time.sleep(1)  # what is being saved begins to be, and will have been
            for _ in range(6000):
                if not any(Path("run/checkpoints").glob(".*")):
                    break
                time.sleep(0.01)
            note(f"struck-{restarts}")
            @FAULT@

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), Faulty(), keras.layers.Dense(16, "tanh"), keras.layers.Dropout(0.2),
                              keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def faulty(
    fault: str, rank: int | str = 1, call: int = 25, runs: str = "[0]", pause: float = 0.0, first: int = 0
) -> str:
    """A model whose `rank` does `fault` in its training step number `call`, in the runs that `runs` counts (from 0).

    `rank` may be an expression of `restarts`, the run's number.

    It notes the time of a run's first step on rank `first` in the file began-<run>, and that of the fault in
    struck-<run>.
    """
    text, values = _FAULTY, {"PAUSE": pause, "RANK": rank, "CALL": call, "RUNS": runs, "FAULT": fault, "FIRST": first}
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def processes(folder: Path) -> dict[int, int]:
    """The processes of the jobs in `folder` that run now, by pid: the rank's number, MPIRUN for what is none."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"hpc_train" in words and b"train" in words and any(str(folder).encode() in word for word in words):
                env = dict(pair.partition(b"=")[::2] for pair in (path / "environ").read_bytes().split(b"\0"))
                found[int(path.name)] = int(env.get(b"OMPI_COMM_WORLD_RANK", MPIRUN))
    return found


class Launched:
    """`hpc-train launch -n RANKS` of a job, in a session of its own. At the end nothing of it runs any more.

    `name` tells two of one job apart: what they print goes to the files <name>.out and <name>.err. `anew`: the ranks
    do not begin in forks, see tests/forks.py: all that is done to their processes is done to themselves. `below`:
    words before those of the command; then they begin anew, too.
    """

    def __init__(
        self,
        job: Job,
        *arguments: str,
        ranks: int = 2,
        name: str = "launch",
        anew: bool = False,
        below: Sequence[str] = (),
        **env: str,
    ) -> None:
        self.job, self.started, self._others = job, time.time(), processes(job.folder)
        command = [sys.executable, "-m", "hpc_train", "launch", "-n", str(ranks), str(job.file)]
        self._out, self._err = (job.folder / f"{name}.{end}" for end in ("out", "err"))
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self.process = subprocess.Popen(
                [*below, *command, "--job-dir", str(job.job_dir), *arguments],
                cwd=job.folder,
                env=environment(**({} if anew or below else forks(environment())), **env),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = lambda: set(processes(self.job.folder)) - set(self._others)
        try:
            if error is None:
                assert self.process.poll() is not None, "still running"
                wait_for(lambda: not left(), lambda: f"left behind: {left()}", 60)  # who was killed goes in a moment
        finally:
            self.process.kill()
            self.process.wait()
            for pid in left():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"{self.out}\n{self.err}"

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def status(self) -> dict[str, Any]:
        path = self.job.job_dir / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def wait_for(self, name: str) -> float:
        """Waits for the model's note `name`; the time it was made."""
        path = self.job.folder / name
        wait_for(lambda: path.exists() or self.process.poll() is not None, lambda: f"{name}\n{self}")
        assert path.exists(), str(self)
        return float(path.read_text())

    def end(self) -> int:
        """Waits for the end; the exit code."""
        wait_for(lambda: self.process.poll() is not None, lambda: f"the end\n{self}")
        assert self.process.returncode is not None
        return self.process.returncode

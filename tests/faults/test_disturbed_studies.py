"""Studies whose drivers, ranks and launchers are killed at random moments, against those that nobody has disturbed.

`make soak` does so for ten minutes (DISTURBED_SECS=600), with one study after the other.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from hpc_train.outcome import EXIT_FAILED, EXIT_LOST_NODE, STOP_CODES
from hpc_train.tuning.search.folder import StudyFolder
from tests.conftest import SESSIONS
from tests.disturbance import SHAPES, Place, Tally, disturb_studies, launchers_of, processes_of, ranks_of
from tests.support import BIN, LIMIT_SECS, SOAK, environment

SECS = float(os.environ.get("DISTURBED_SECS", 600)) if SOAK > 1 else None


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The folder for temporary files; its name is short, as Open MPI wants it."""
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class Here(Place):
    """`hpc-train tune` on this machine."""

    crashes = frozenset(["rank killed", "mpirun killed", "mpirun stopped"])
    begin_secs, poll_secs = 0.0, 0.05

    def __init__(self, folder: Path, name: str, slots: int, chance: random.Random, temporary: Path) -> None:
        self.study = StudyFolder(folder / "runs" / name)
        self._folder, self._slots, self._chance = folder, slots, chance
        self.environment = {"TMPDIR": str(temporary)}
        self._env = {k: v for k, v in environment(**self.environment).items() if k != SESSIONS}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / f"{name}.log"
        path = self.study.path
        self.kinds: Mapping[str, Callable[[], bool]] = {
            "driver killed": lambda: self._signal(signal.SIGKILL),
            "driver stopped": lambda: self._signal(signal.SIGTERM),
            "driver warned": lambda: self._signal(signal.SIGUSR1),
            "rank killed": lambda: self._one_of(ranks_of(path), signal.SIGKILL),
            "mpirun killed": lambda: self._one_of(launchers_of(path), signal.SIGKILL),
            "mpirun stopped": lambda: self._one_of(launchers_of(path), signal.SIGTERM),
            "all killed": self._kill_all,
        }

    def _signal(self, number: int) -> bool:
        assert self._process is not None
        self._process.send_signal(number)
        return True

    def _one_of(self, found: list[psutil.Process], number: int) -> bool:
        if not found:
            return False
        self._chance.choice(found).send_signal(number)
        return True

    def _kill_all(self) -> bool:
        for process in processes_of(self.study.path):
            process.kill()
        return True

    def go_on(self, tally: Tally) -> bool:
        code = self._process.poll() if self._process is not None else -signal.SIGKILL
        if code is None:
            return True
        if code == 0:
            return False
        if code not in {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGUSR1, *STOP_CODES.values()}:
            said = self._log.read_text()
            assert code in (EXIT_FAILED, EXIT_LOST_NODE), f"{code}\n{said}"
            assert "no slot is left in which ranks come up" in said, said
        tally.starts += 1
        words = ["job.yaml", "--study", str(self.study.path), "--parallel", str(self._slots)]
        words += ["--fresh-ranks"] if self._chance.random() < 0.3 else []
        with open(self._log, "ab") as log:
            command = [str(BIN / "hpc-train"), "tune", *words]
            self._process = subprocess.Popen(command, cwd=self._folder, env=self._env, stdout=log, stderr=log)
        return True

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_SECS)


@pytest.mark.random
def test_studies_that_are_killed_at_random_moments_are_those_that_nobody_has_disturbed(
    tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", flush=True)

    make = lambda *words: Here(*words, temporary)
    tally = disturb_studies(tmp_path, list(SHAPES)[: 1 if SOAK == 1 else None], make, 0, SECS, report)
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("__autograph_generated_file")]
    assert not left, "in the folder for temporary files"
    assert tally.kills.total() > 0

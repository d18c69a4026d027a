"""Ranks that stay: one mpirun in which many jobs run in turn, since most of a tiny job's time is its start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.forks import forked
from tests.stacks import PRINTED_SECS
from tests.support import LIMIT_SECS, Job, environment, mpirun, run_ranks, wait_for

PROGRAM = Path(__file__).parent / "programs" / "ranks.py"
STAYING = 8
"""So many ranks stay at most, of 500 MB each; of more, those end that were not needed for the longest time."""

_staying: dict[object, Ranks] = {}


def train(
    job: Job, ranks: int = 0, job_dir: Path | None = None, timeout: float = LIMIT_SECS, fresh: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """`hpc-train train` of a job on so many ranks; `fresh`: on ranks that have done nothing before.

    Ranks in which system calls are to fail (INJECT) are fresh, too.
    """
    arguments = ["train", str(job.file), "--job-dir", str(job_dir or job.job_dir)]
    if fresh or "INJECT" in env:
        return run_ranks(ranks, ["-m", "hpc_train", *arguments], job.folder, timeout, **env)
    return hpc_train(arguments, ranks, job.folder, timeout, **env)


def train_in_turn(
    jobs: Sequence[Job], ranks: int = 0, timeout: float = LIMIT_SECS, fresh: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Trains jobs one after the other, until one fails; "next job" is printed after each that does not.

    All on the same ranks, which stay. `fresh`: on ranks that have done nothing before, and which end.
    """
    commands = [["train", str(job.file), "--job-dir", str(job.job_dir)] for job in jobs]
    done = in_turn(commands, ranks, [job.folder for job in jobs], timeout, fresh, **env)
    out = "".join(each.stdout + ("" if each.returncode else "next job\n") for each in done)
    return subprocess.CompletedProcess(commands, done[-1].returncode, out, "".join(each.stderr for each in done))


def in_turn(
    commands: Sequence[Sequence[str]],
    ranks: int,
    folders: Sequence[Path],
    timeout: float = LIMIT_SECS,
    fresh: bool = False,
    **env: str,
) -> list[subprocess.CompletedProcess[str]]:
    """The same for any commands of hpc-train, each in its folder; how each ended."""
    done: list[subprocess.CompletedProcess[str]] = []
    own = Ranks(ranks, env) if fresh else None
    try:
        for arguments, folder in zip(commands, folders, strict=True):
            if own is None:
                done.append(hpc_train(arguments, ranks, folder, timeout, **env))
            else:
                done.append(own.run(arguments, folder, timeout))
            if done[-1].returncode != 0:
                break
    finally:
        if own is not None:
            own.end()
    return done


def hpc_train(
    arguments: Sequence[str], ranks: int, cwd: Path, timeout: float = LIMIT_SECS, **env: str
) -> subprocess.CompletedProcess[str]:
    """`hpc-train ARGUMENTS` on ranks that stay, which have the environment `env` and may have run other commands."""
    # MPI and Horovod are started once, in another way for parameter servers, a dedicated chief, and an evaluation,
    # which asks less of MPI than a job that would come later to the same ranks.
    job = Path(arguments[1]).read_bytes() if arguments[0] == "train" else b""
    roles = [way in job for way in (b"strategy: async", b"chief: dedicated")]
    key = (ranks, *roles, arguments[0] == "evaluate", tuple(sorted(env.items())))
    those = _staying.pop(key, None) or Ranks(ranks, env)
    while _staying and sum(max(1, other.size) for other in _staying.values()) + max(1, ranks) > STAYING:
        _staying.pop(next(iter(_staying))).end()
    done = those.run(arguments, cwd, timeout)
    if not those.have_ended and _staying.setdefault(key, those) is not those:
        those.end()  # another thread was quicker
    return done


def end_all() -> None:
    """Ends all ranks that stay."""
    while _staying:
        _staying.popitem()[1].end()


class Ranks:
    """Ranks that wait for commands (0: a process without mpirun), stopped meanwhile: Horovod never rests.

    They are told by files in a folder: command-<n>.json, to which each rank answers by code-<n>-<rank>.
    """

    def __init__(self, size: int, env: dict[str, str]) -> None:
        self.size, self._count = size, 0
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        with open(self._folder / "launcher", "w") as launcher:
            self._process = subprocess.Popen(
                [*mpirun(size), *forked([PROGRAM, self._folder], environment())],
                env=environment(**env),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=launcher,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pids: list[int] = []
        try:
            wait_for(lambda: len(self._answers("pid")) == max(1, size) or self.have_ended, f"{size} ranks", 180)
            assert not self.have_ended, (self._folder / "launcher").read_text()
        except BaseException:
            self._kill()
            raise
        self._pids = self._answers("pid")
        self._send(signal.SIGSTOP)

    @property
    def have_ended(self) -> bool:
        return self._process.poll() is not None

    def run(self, arguments: Sequence[str], cwd: Path, limit: float) -> subprocess.CompletedProcess[str]:
        """Runs `hpc-train ARGUMENTS` on all of them.

        They end where the exit code is neither 0 nor 2 (nothing was begun): who knows what else a failure leaves.
        """
        out, err = self._tell(arguments=list(arguments), cwd=str(cwd))
        answer = f"code-{self._count}"
        try:
            wait_for(lambda: len(self._answers(answer)) == max(1, self.size) or self.have_ended, "", limit)
        except BaseException as error:
            if not isinstance(error, AssertionError):  # somebody ends the tests
                self._kill()
                raise
            self._send(signal.SIGQUIT)  # they print their stacks, see tests/stacks.py
            time.sleep(PRINTED_SECS)
            said = f"not within {limit:.0f} s: {arguments}\n{out.read_text()}\n{err.read_text()}"
            self._kill()
            raise AssertionError(said) from None
        code = self._process.returncode if self.have_ended else max(self._answers(answer), key=bool)
        if code in (0, 2) and not self.have_ended:
            self._send(signal.SIGSTOP)
            return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())
        last_words = (self._folder / "launcher").read_text()
        done = subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text() + last_words)
        self.end()
        return done

    def end(self) -> None:
        """Has them leave; after 10 s they are ended."""
        if not self.have_ended:
            self._tell(arguments=None)
            with suppress(AssertionError):
                wait_for(lambda: self.have_ended, "the ranks leave", 10)
        self._kill()

    def _tell(self, **command: object) -> tuple[Path, Path]:
        """Gives them a command; the files of what they will print."""
        self._count += 1
        printed = [self._folder / f"{name}-{self._count}" for name in ("out", "err")]
        for path in printed:
            path.touch()
        text = json.dumps({**command, "printed": list(map(str, printed))})
        (self._folder / "new").write_text(text)
        (self._folder / "new").rename(self._folder / f"command-{self._count}.json")
        self._send(signal.SIGCONT)
        return printed[0], printed[1]

    def _answers(self, name: str) -> list[int]:
        return [int(path.read_text()) for path in sorted(self._folder.glob(f"{name}-*"))]

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill(self) -> None:
        if not self.have_ended:
            self._send(signal.SIGKILL)
            with suppress(AssertionError):
                wait_for(lambda: self.have_ended, "mpirun cleans up", 10)
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

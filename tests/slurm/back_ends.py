"""hpc-train's job commands as users type them, for a queue of Slurm's and one of this machine, and jobs for them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.forks import forks
from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import job_environment
from tests.support import BIN, LIMIT_SECS, environment, wait_for

PROGRAM = """\
import argparse
import os
import signal
import sys
import time
from pathlib import Path

from trainer.words import WORD

parser = argparse.ArgumentParser()
parser.add_argument("--until", type=Path, help="goes on until there is this file")
parser.add_argument("--fail-on", type=int, help="raises on this rank")
parser.add_argument("--job-dir", type=Path, required=True)
args = parser.parse_args()
rank, ranks = (int(os.environ.get(f"OMPI_COMM_WORLD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))


def save_and_leave(code):
    (args.job_dir / f"saved-{rank}").touch()
    sys.stdout.write(f"rank {rank} has saved\\n")
    sys.exit(code)


signal.signal(signal.SIGUSR1, lambda *_: save_and_leave(3))
signal.signal(signal.SIGTERM, lambda *_: save_and_leave(4))
(args.job_dir / f".pid-{rank}").write_text(str(os.getpid()))
(args.job_dir / f".pid-{rank}").rename(args.job_dir / f"pid-{rank}")
sys.stdout.write(f"rank {rank} of {ranks} says {WORD}\\n")  # print() may write the line's end by itself
for _ in range(36_000):
    if args.until is None or args.until.exists():
        break
    time.sleep(0.1)
if args.fail_on == rank:
    raise ValueError("no such data")
if args.fail_on is not None:
    time.sleep(3600)
"""


def make_program(
    folder: Path, args: Sequence[object] = (), word: str = "one", name: str = "tiny", **resources: Any
) -> Path:
    """A folder with a program without TensorFlow, which starts in no time, and its job file; returns that."""
    (folder / "trainer").mkdir(parents=True)
    (folder / "trainer/task.py").write_text(PROGRAM)
    (folder / "trainer/words.py").write_text(f"WORD = {word!r}\n")
    job = {"name": name, "module": "trainer.task", "args": list(args), "resources": {"tier": "CUSTOM", **resources}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


@dataclass(frozen=True)
class Done:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str

    def json(self) -> list[dict[str, Any]]:
        """The objects that it has printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class BackEnd:
    """Context manager: runs hpc-train with one back end. Job-dirs are in `root`, the default there; code is in `code`.

    At the end it cancels the jobs of which no end was seen.

    Attributes:
        cluster: The Slurm; None: the jobs are this machine's, whose queue is a private one, and there is no sbatch.
        all_cores: What a job has to ask for to get all that there is, as `resources`.
    """

    def __init__(self, folder: Path, cluster: SlurmCluster | None) -> None:
        self.folder, self.root, self.code, self.cluster = folder, folder / "runs", folder / "code", cluster
        self.submitted: list[Submitted] = []
        self._scratch = Path(tempfile.mkdtemp(dir=cluster.root / "tmp" if cluster is not None else None))
        if cluster is None:
            self.name, self.all_cores = "local", {"cores_per_rank": len(os.sched_getaffinity(0))}
            own = {"XDG_STATE_HOME": str(folder / "state"), "PATH": self.path_without_slurm()}
            self.env = environment(**own, **forks(environment()))
        else:
            self.name, self.all_cores = "slurm", {"nodes": 2, "cores_per_rank": cluster.cpus_per_node}
            self.env = {**cluster.env, **job_environment(cluster)}
        self.env |= {"HPC_TRAIN_ROOT": str(self.root), "XDG_CONFIG_HOME": str(folder / "config")}

    def __enter__(self) -> BackEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel_all(self.submitted)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def path_without_slurm(self) -> str:
        """PATH with hpc-train, mpirun and little else."""
        programs = self._scratch / "bin"
        programs.mkdir(exist_ok=True)
        for program in ("env", "git", "ssh"):
            if (found := shutil.which(program)) and not (programs / program).exists():
                (programs / program).symlink_to(found)
        return os.pathsep.join([str(BIN), str(programs)])

    def run(self, *words: object, code: int | None = 0, cwd: Path | None = None, **env: str) -> Done:
        """Runs `hpc-train WORDS`, which has to end with `code` (None: any)."""
        done = subprocess.run(
            ["hpc-train", *map(str, words)],
            cwd=cwd or self.folder,
            env={**self._own_environment(), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECS,
        )
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: object, **env: str) -> Running:
        """Starts `hpc-train WORDS`, to be interrupted or waited for."""
        return Running(["hpc-train", *map(str, words)], self.folder, {**self._own_environment(), **env})

    def _own_environment(self) -> dict[str, str]:
        """Open MPI keeps files in TMPDIR, where jobs that start at one moment may collide: each has its own."""
        return {**self.env, "TMPDIR": tempfile.mkdtemp(dir=self._scratch)}

    def submit(
        self, name: str, *args: object, word: str = "one", after: str | None = None, **resources: Any
    ) -> Submitted:
        """Submits a program's job, whose folder is `code/<name>`; `args` are those of PROGRAM."""
        job_file = make_program(self.code / name, args, word, **resources)
        return self.submit_file(job_file, name, *([] if after is None else ["--after", after]))

    def submit_file(self, job_file: Path, name: str, *options: object) -> Submitted:
        """Submits a job file as `name`."""
        (found,) = self.run("submit", job_file, "--name", name, "--json", *options).json()
        assert (found["name"], found["job_dir"], found["backend"]) == (name, str(self.root / name), self.name)
        return self.job(name, found["job_id"])

    def job(self, name: str, number: str) -> Submitted:
        """A job that was submitted."""
        self.submitted.append(Submitted(self, name, number))
        return self.submitted[-1]

    def cancel_all(self, jobs: Sequence[Submitted]) -> None:
        """Cancels those of them of which no end has been seen."""
        if left := [job.name for job in jobs if not job.ends]:
            self.run("cancel", *left, code=None)


@dataclass(frozen=True)
class Submitted:
    """A job in a queue. `ends`: the state in which it has ended, once that was seen."""

    back_end: BackEnd
    name: str
    number: str
    ends: list[str] = field(default_factory=list)

    @property
    def job_dir(self) -> Path:
        return self.back_end.root / self.name

    def again(self, *options: object) -> Submitted:
        """Resumes it."""
        (found,) = self.back_end.run("resume", self.name, "--json", *options).json()
        return self.back_end.job(self.name, found["job_id"])

    def status(self) -> dict[str, Any]:
        """What `hpc-train describe` reports."""
        (found,) = self.back_end.run("describe", self.name, "--json").json()
        return found

    def wait_for(self, state: str, is_so: Callable[[dict[str, Any]], object] = lambda status: True) -> dict[str, Any]:
        """Its status, once it is in `state`, and so."""

        def as_wanted() -> dict[str, Any] | None:
            status = self.status()
            found = status["state"] == state and is_so(status)
            assert found or status["exit_code"] is None or status["state"] == state, self._and_log(state, status)
            return status if found else None

        found = wait_for(as_wanted, lambda: self._and_log(state, self.status()), every=0.5)
        assert found is not None
        return found

    def _and_log(self, state: str, status: dict[str, Any]) -> str:
        return f"{self.name}: not {state} as it should be: {status}\n{self.log()}"

    def end(self) -> tuple[str, int]:
        """Waits for its end: the state, and the exit code of `hpc-train wait`."""
        done = self.back_end.run("wait", self.name, "--json", code=None)
        (status,) = done.json()
        assert status["exit_code"] == done.code
        self.ends.append(status["state"])
        return status["state"], done.code

    def let_go(self) -> None:
        """A program that was told `--until {job_dir}/go` ends."""
        (self.job_dir / "go").touch()

    def wait_until_it_says(self, text: str) -> None:
        wait_for(lambda: text in self.log(), lambda: f"{self.name} says {text!r}, not\n{self.log()}")

    def log(self) -> str:
        path = self.job_dir / "logs/job.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def pids(self) -> list[int]:
        """Of the ranks of a program."""
        return [int(path.read_text()) for path in self.job_dir.glob("pid-*")]

    def send(self, number: signal.Signals) -> None:
        """SIGUSR1 is Slurm's warning, SIGTERM what a site's scripts send: both go to what looks after the ranks."""
        if self.back_end.cluster is not None:
            self.back_end.cluster.scancel(self.number, "--batch", f"--signal={number.name.removeprefix('SIG')}")
        else:
            os.kill(self.runner(), number)

    def runner(self) -> int:
        """The process that looks after a job of this machine."""
        tickets = map(json.loads, map(Path.read_text, (self.back_end.folder / "state").rglob("ticket-*.json")))
        return next(int(ticket["pid"]) for ticket in tickets if ticket["job_dir"] == str(self.job_dir))


class Running:
    """Context manager: a command that runs; it is killed at the end if it still does."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._command, self._cwd, self._env = command, cwd, env

    def __enter__(self) -> Running:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            # What a shell starts in the background ignores Ctrl-C, and so do its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(LIMIT_SECS)
        self._out.close()
        self._err.close()

    def out(self) -> str:
        """What it has printed until now."""
        return os.pread(self._out.fileno(), 1 << 20, 0).decode()

    def err(self) -> str:
        """And to its standard error."""
        return os.pread(self._err.fileno(), 1 << 20, 0).decode()

    def wait_until_it_says(self, text: str) -> None:
        wait_for(lambda: text in self.out() + self.err(), f"{self._command} says {text!r}")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> Done:
        """Waits for its end."""
        code = self._process.wait(LIMIT_SECS)
        return Done(code, self.out(), self.err())

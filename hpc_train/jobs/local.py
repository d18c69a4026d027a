"""Starts the ranks of a job on this machine with mpirun."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.resilience.signals import StopSignals

POLL_SECS = 0.1


def mpirun_command(
    mpirun: str, version_text: str, ranks: int, program: list[str], as_root: bool, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command that runs `program` on `ranks` ranks, and the variables to set for it. Pure.

    `--oversubscribe` allows more ranks than cores; `--bind-to none` leaves cores to the ranks' threads; `--quiet`
    keeps mpirun's own words about a failure away from the job's.
    """
    settings: dict[str, str] = {}
    if "Open MPI" not in version_text:
        return [mpirun, "-bind-to", "none", "-np", str(ranks), *program], settings
    if as_root:
        settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        settings = {name: value for name, value in settings.items() if name not in env}
    flags = ["--oversubscribe", "--bind-to", "none", "--quiet", "-np", str(ranks)]
    return [mpirun, *flags, *program], settings


def launch(ranks: int, job_file: Path, job_dir: Path | None) -> int:
    """Runs `hpc-train train` on `ranks` ranks and returns their exit code.

    The signals that stop a job, Ctrl-C among them, go to the ranks as SIGUSR1: mpirun hands that one on, while any
    other would make it kill them within a second or two. A second Ctrl-C does just that.

    Raises:
        UserError: There is no mpirun.
    """
    mpirun = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if mpirun is None:
        raise UserError("mpirun is not on PATH; load an MPI module or run `make setup`")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60).stdout
    program = [sys.executable, "-m", "hpc_train", "train", str(job_file)]
    if job_dir is not None:
        program += ["--job-dir", str(job_dir)]
    command, settings = mpirun_command(mpirun, version, ranks, program, os.geteuid() == 0, os.environ)
    progress = "bar" if sys.stdout.isatty() else "lines"
    env = {"HPC_TRAIN_PROGRESS": progress, **os.environ, **settings}
    # A session of its own keeps the terminal's Ctrl-C from mpirun.
    with (
        StopSignals() as signals,
        subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True) as process,
    ):
        try:
            while process.poll() is None:
                if signals.received is not None:
                    process.send_signal(signal.SIGUSR1)
                    signals.received = None
                time.sleep(POLL_SECS)
        except KeyboardInterrupt:
            process.terminate()
        return process.wait()

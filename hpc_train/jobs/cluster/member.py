"""One rank of TensorFlow's cluster: meets the others, and runs its program with TF_CONFIG."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_train.config.cluster import cluster_in
from hpc_train.distributed.launch_env import launch_place, launched_rank
from hpc_train.errors import UserError
from hpc_train.jobs.cluster.rendezvous import Rendezvous
from hpc_train.jobs.cluster.roles import is_server, members, tf_config
from hpc_train.outcome import STOP_CODES
from hpc_train.resilience.guard import end_with
from hpc_train.telemetry.start_timeline import LAUNCHED_VARIABLE
from hpc_train.telemetry.status import REQUEUES_VARIABLE, RESTARTS_VARIABLE

LOOK_SECS = 1.0
"""How often a server looks whether the chief has ended."""
KILL_SECS = 10.0
"""How long a server may take to end then."""
_RUN = (LAUNCHED_VARIABLE, "SLURM_JOB_ID", "SLURM_RESTART_COUNT", REQUEUES_VARIABLE, RESTARTS_VARIABLE)
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_WATCHED = (*_PASSED_ON, signal.SIGCHLD)


def run_member(word: str, job_dir: Path, program: Sequence[str], env: Mapping[str, str]) -> int:
    """Runs `python program…` as this rank's member of the cluster, and returns its exit code.

    Where the cluster has parameter servers, they and the workers are ended, with code 0, once the chief has ended with
    0. They and an evaluator are not asked to stop (SIGUSR1), so that the chief can save: the launcher ends all ranks
    with the first that leaves. All other signals reach the program.

    Args:
        word: The cluster, as `words_of` writes it. job_dir: On a file system that all ranks see.
        env: This process's environment, with what the launcher has set.

    Raises:
        UserError: There are more or fewer ranks than members; no launcher has started this; or ranks do not meet.
    """
    cluster = cluster_in(word)
    everyone, place = members(cluster), launch_place(env)
    if place.size != len(everyone):
        raise UserError(f"cluster: {word} has {len(everyone)} members, and there are {place.size} ranks")
    run = " ".join(env.get(name, "") for name in _RUN)
    if not run.strip():
        raise UserError("cluster: ranks find one another in a job of hpc-train submit; start it by that")
    rank = launched_rank(env) if place.launched else 0
    own = everyone[rank]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    meeting = Rendezvous(job_dir, run, rank, len(everyone))
    with meeting.open():  # nobody else takes the port before all have met
        try:
            addresses = meeting.addresses(is_over=lambda: _asked() is not None)
        except UserError:
            if _asked() is None:
                raise
    if (number := _asked()) is not None:
        return STOP_CODES.get(number.name, 128 + number)
    told = {**env, "TF_CONFIG": tf_config(cluster, addresses, rank)}
    code = _Program(program, told, mask, stops=own.role in ("chief", "worker") and not is_server(own, cluster)).run(
        meeting if is_server(own, cluster) else None
    )
    if own.role == "chief" and code == 0:
        meeting.end()
    return code


def _asked() -> signal.Signals | None:
    """The signal that has come, while they are blocked; None: none has."""
    return next((signal.Signals(number) for number in sorted(signal.sigpending()) if number in _PASSED_ON), None)


@dataclass(frozen=True)
class _Program:
    """The program of a member, a child of this process.

    Attributes:
        mask: Of signals, as it was. stops: Whether it is told of SIGUSR1; else it ignores that from its start on, in
            case the launcher sends it to all processes.
    """

    words: Sequence[str]
    env: Mapping[str, str]
    mask: set[int]
    stops: bool

    def run(self, ends_with: Rendezvous | None) -> int:
        """Its exit code, 128 + n after signal n; 0 for a server that has ended with the chief."""
        process = subprocess.Popen([sys.executable, *self.words], env=self.env, preexec_fn=self._begin(os.getpid()))
        ended = 0.0
        while (code := process.poll()) is None:
            got = signal.sigtimedwait(_WATCHED, LOOK_SECS)
            if got is not None and got.si_signo in _PASSED_ON:
                if self.stops or got.si_signo != signal.SIGUSR1:
                    process.send_signal(got.si_signo)
            elif got is None and ends_with is not None and ends_with.has_ended:
                if not ended:
                    ended = time.monotonic()
                    process.terminate()
                elif time.monotonic() - ended > KILL_SECS:
                    process.kill()
        if ended or (code != 0 and ends_with is not None and ends_with.has_ended):
            return 0
        return 128 - code if code < 0 else code

    def _begin(self, parent: int) -> Callable[[], None]:
        def begin() -> None:
            os.setpgid(0, 0)  # a signal to the group of the parent reaches the program through it, once
            end_with(parent)
            if not self.stops:
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

        return begin

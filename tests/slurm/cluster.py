"""A real Slurm of two or more nodes on one machine, for tests: munged, slurmctld and two slurmd, started as root.

All that belongs to it lives in one temporary directory and on ports that were free, so that it touches neither
/etc/slurm nor a Slurm that already runs here. Jobs go to the partition `test`; jobs in `urgent` preempt them,
with 30 s of grace (5 s for jobs in `hasty`), and they are requeued; `short` has one node and ten minutes. Needs the
programs of Debian's `slurmctld`, `slurmd`, `slurm-client` and `munge`.

`python -m tests.slurm.cluster [COMMAND ...]` starts a cluster, runs the command (a shell without one) with
SLURM_CONF set, and stops the cluster when it ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support import LIMIT_SECS, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue")
STOP_SECS = 60.0  # a stop takes 1 s
FINISHED = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"]
)

_CONF = """\
ClusterName=hpctraintest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
SlurmdTimeout={slurmd_timeout_secs}
MailProg=/bin/true
TmpFS={root}/tmp/%n
TaskProlog={root}/own_tmp
{controller_parameters}
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=30
PartitionName=hasty Nodes=ALL MaxTime=INFINITE PriorityTier=1 GraceTime=5
PartitionName=short Nodes=n1 MaxTime=10 PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
"""

_OWN_TMP = """\
#!/bin/sh
own={root}/tmp/$SLURMD_NODENAME-$SLURM_JOB_ID
mkdir -p "$own" && echo "export TMPDIR=$own"
"""


def missing_requirements() -> str | None:
    """What this machine lacks to run a cluster, as one sentence, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurmctld, slurmd, slurm-client and munge)"
    if os.geteuid() != 0:
        return "a private Slurm cluster needs root"
    return None


@dataclass(frozen=True)
class JobResult:
    """How a job stands: Slurm's state (`COMPLETED`), exit code, the signal that ended it (or 0), times requeued."""

    state: str
    exit_code: int
    signal: int
    restarts: int


class SlurmCluster:
    """Context manager: a running cluster. `env` is the environment for Slurm's client programs.

    Args:
        cpus_per_node: What Slurm believes each node has.
        slurmd_timeout_secs: A node that has not answered for so long is down.
        preempt_send_user_signal: A preempted job gets its --signal at once; else its steps get TERM.
        nodes: How many: n1, n2 …
    """

    def __init__(
        self,
        cpus_per_node: int = 2,
        slurmd_timeout_secs: int = 300,
        preempt_send_user_signal: bool = False,
        nodes: int = 2,
    ) -> None:
        if cpus_per_node < 1:
            raise ValueError(f"cpus_per_node={cpus_per_node}: at least 1")
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.cpus_per_node = cpus_per_node
        self.slurmd_timeout_secs = slurmd_timeout_secs
        self.preempt_send_user_signal = preempt_send_user_signal
        self.root = Path()
        self.env: dict[str, str] = {}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmCluster:
        # Not in pytest's temporary directory: others may not enter that, which munged wants, and the name of a
        # socket may not be longer than 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.root.chmod(0o755)
        try:
            self._start()
        except BaseException as error:
            report = self._logs()
            self.stop()
            raise RuntimeError(f"the Slurm cluster did not start: {error}\n{report}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self._write_files()
        self._spawn(
            "munged",
            "--foreground",
            "--force",
            "--num-threads=2",
            *(
                f"--{option}={self.root}/munge/{option}"
                for option in ("socket", "key-file", "pid-file", "seed-file", "log-file")
            ),
        )
        self._await("munged's socket", lambda: (self.root / "munge/socket").exists())
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self._await("idle nodes", self._nodes_are_idle)

    def has_controller(self) -> bool:
        """Whether slurmctld answers."""
        try:
            self.run(["squeue"], timeout_secs=60)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def start_controller(self) -> None:
        """Starts slurmctld, without waiting for it."""
        self._spawn("slurmctld", "-D", "-f", f"{self.root}/slurm.conf")

    def stop_controller(self) -> None:
        """Ends slurmctld, which notes first what it knows of the jobs. They go on; clients get no answer."""
        slurmctld = self._daemons.pop("slurmctld")
        slurmctld.terminate()
        slurmctld.wait(STOP_SECS)

    def forget_jobs(self, next_number: int = 1) -> None:
        """Has slurmctld start without what it knew, as after a loss of its disk: it ends all jobs, and counts anew.

        A node that still ends a job of the same number as a new one would refuse that, and be drained.
        """
        self.stop_controller()
        shutil.rmtree(self.root / "state")
        (self.root / "state").mkdir(mode=0o755)
        with open(self.root / "slurm.conf", "a") as conf:
            conf.write(f"FirstJobId={next_number}\n")
        self.start_controller()
        self._await("idle nodes", self._nodes_are_idle)
        self._await("the end of all jobs", lambda: not any(map(self._has_steps, self.nodes)))

    def start_node(self, node: str) -> None:
        """Starts the slurmd of `node`, as a reboot does; without waiting for it."""
        self._spawn("slurmd", "-D", "-N", node, "-f", f"{self.root}/slurm.conf", name=f"slurmd-{node}")

    def kill_node(self, node: str) -> None:
        """Kills the slurmd of `node` and all that runs under it, in no time, as a power failure does.

        All of them are stopped before the first is killed, and the youngest is killed first: none lives to tell of
        another's end. Were a parent killed before its children, Linux would let these go on (SIGHUP, SIGCONT), and an
        srun that gets SIGHUP cancels its step on the other nodes.
        """
        slurmd = self._daemons.pop(f"slurmd-{node}")
        slurmd.send_signal(signal.SIGSTOP)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in sorted(self.processes_of(node), key=_start_time, reverse=True):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        slurmd.kill()
        slurmd.wait(STOP_SECS)

    def processes_of(self, node: str) -> list[int]:
        """slurmstepd has the environment of its slurmd, and a job's processes have SLURMD_NODENAME from Slurm."""
        marks = f"SLURM_CONF={self.root}/slurm.conf".encode(), f"SLURMD_NODENAME={node}".encode()
        return [
            int(process.name)
            for process in Path("/proc").glob("[0-9]*")
            if all(_has_in_environment(process, mark) for mark in marks)
        ]

    def _has_steps(self, node: str) -> bool:
        for pid in self.processes_of(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).name() == "slurmstepd":
                    return True
        return False

    def _write_files(self) -> None:
        for directory in (
            "munge",
            "state",
            "tmp",
            *(f"{kind}{node}" for kind in ("spool-", "tmp/") for node in self.nodes),
        ):
            (self.root / directory).mkdir(mode=0o755)
        key = self.root / "munge/key-file"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(1 + len(self.nodes))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus_per_node}"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        )
        conf = _CONF.format(
            host=host,
            controller_port=ports[0],
            root=self.root,
            nodes=nodes,
            slurmd_timeout_secs=self.slurmd_timeout_secs,
            controller_parameters=(
                "SlurmctldParameters=preempt_send_user_signal" if self.preempt_send_user_signal else ""
            ),
        )
        (self.root / "slurm.conf").write_text(conf)
        # Nodes of one machine share its /tmp, in which the Open MPI daemons of two nodes would take away each other's
        # folders. Here each job has one of its own on each node, as on many clusters.
        own_tmp = self.root / "own_tmp"
        own_tmp.write_text(_OWN_TMP.format(root=self.root))
        own_tmp.chmod(0o755)
        own = {"SLURM_CONF": f"{self.root}/slurm.conf", "PATH": _path(), "TMPDIR": f"{self.root}/tmp"}
        self.env = {k: v for k, v in os.environ.items() if not re.match("(SLURM|SBATCH|OMPI|PMIX?)_", k)} | own

    def _spawn(self, program: str, *args: str, name: str | None = None) -> None:
        name = name or program
        node = {"SLURMD_NODENAME": name.removeprefix("slurmd-")} if name.startswith("slurmd-") else {}
        with open(self.root / f"{name}.out", "ab") as out:
            self._daemons[name] = subprocess.Popen(
                [program, *args],
                env={**self.env, **node},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await(self, what: str, is_there: Callable[[], bool]) -> None:
        """Waits until `is_there()`; RuntimeError if a daemon ends meanwhile."""

        def is_there_or_never() -> bool:
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} ended with code {daemon.returncode}")
            return is_there()

        wait_for(is_there_or_never, what)

    def _nodes_are_idle(self) -> bool:
        try:
            states = self.run(["sinfo", "-hN", "--partition=test", "--format=%T"], timeout_secs=60)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False  # slurmctld is not listening yet
        return states.split() == ["idle"] * len(self.nodes)

    def stop(self) -> None:
        """Cancels the jobs, ends the daemons started here and what they leave behind, removes the directory."""
        if not self.root.name:
            return  # never started
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].poll() is None:
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):  # they are ended below all the same
                self.run(["scancel", "--quiet", "--user=root"], timeout_secs=10)
        for daemon in reversed(self._daemons.values()):
            if daemon.poll() is None:
                daemon.terminate()
        deadline = time.monotonic() + STOP_SECS
        for daemon in self._daemons.values():
            try:
                daemon.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(STOP_SECS)
        self._daemons.clear()
        self._kill_leftovers()
        shutil.rmtree(self.root, ignore_errors=True)

    def _kill_leftovers(self) -> None:
        """Kills what outlives its daemon, slurmstepd and jobs: all that carry this cluster's SLURM_CONF."""
        mark = f"SLURM_CONF={self.root}/slurm.conf".encode()
        for attempt in range(10):
            marked = [entry for entry in Path("/proc").glob("[0-9]*") if _has_in_environment(entry, mark)]
            pids = [int(entry.name) for entry in marked if int(entry.name) != os.getpid()]
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if attempt == 0 else signal.SIGKILL)
            time.sleep(0.3)

    def _logs(self) -> str:
        """The last lines of what every daemon printed, which is also its log."""
        parts = []
        for path in sorted(self.root.glob("*.out")):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            if lines:
                parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def run(
        self,
        command: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_secs: float = LIMIT_SECS,
    ) -> str:
        """Runs a client command and returns its output; RuntimeError with its messages if it fails."""
        done = subprocess.run(
            command,
            cwd=cwd or self.root,
            env={**self.env, **(env or {})},
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_secs,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def sbatch(self, args: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> int:
        """Runs `sbatch ARGS` in `cwd`, with `env` added to the environment, and returns the job's number."""
        return int(self.run(["sbatch", "--parsable", *args], cwd=cwd, env=env).strip())

    def show(self, job_id: int | str) -> JobResult:
        """How the job stands now."""
        field = self.fields(job_id)
        code, ending_signal = field["ExitCode"].split(":")
        return JobResult(field["JobState"], int(code), int(ending_signal), int(field["Restarts"]))

    def fields(self, job_id: int | str) -> dict[str, str]:
        """What `scontrol show job` says of the job (`A_a` is a task of an array), by its names."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run(["scontrol", "show", "job", str(job_id)])))

    def wait(self, job_id: int | str, timeout_secs: float = LIMIT_SECS, until: Collection[str] = ()) -> JobResult:
        """Waits until the job has ended or is in one of the states `until`.

        TimeoutError, after cancelling the job, once `timeout_secs` have passed.
        """

        def result() -> JobResult | None:
            now = self.show(job_id)
            return now if now.state in FINISHED or now.state in until else None

        try:
            found = wait_for(result, lambda: f"job {job_id} is {self.show(job_id).state}", timeout_secs, every=0.2)
        except AssertionError as error:
            self.scancel(job_id)
            raise TimeoutError(str(error)) from None
        assert found is not None
        return found

    def scancel(self, job_id: int | str, *options: str) -> None:
        """Runs `scancel OPTIONS job_id`: without options, cancels the job."""
        self.run(["scancel", *options, str(job_id)])


def _path() -> str:
    """PATH with the folders that hold daemons, which a user's PATH may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, from below those that the kernel gives to outgoing connections."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(20000, 32000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"found {len(ports)} free ports of {count}")


def _start_time(pid: int) -> tuple[float, int]:
    """For sorting; of those started in the same tick, by number."""
    try:
        return psutil.Process(pid).create_time(), pid
    except psutil.NoSuchProcess:
        return 0.0, pid


def _has_in_environment(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


def main() -> int:
    """Runs the command given, or a shell, beside a running cluster; returns its exit code."""
    if (reason := missing_requirements()) is not None:
        print(f"cluster.py: {reason}", file=sys.stderr)
        return 2
    with SlurmCluster() as cluster:
        command = sys.argv[1:] or [os.environ.get("SHELL", "/bin/sh")]
        return subprocess.run(command, env=cluster.env).returncode


if __name__ == "__main__":
    sys.exit(main())

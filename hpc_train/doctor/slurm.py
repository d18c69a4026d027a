"""What `hpc-train doctor` reports about Slurm: its version, whether it answers, partitions, and what srun can start."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from hpc_train.doctor.tools import Finding, Outcome, Tools
from hpc_train.telemetry.units import counted

LIMIT_SECS = 10.0
_SHOWN_PARTITIONS = 6
_COMMANDS = {
    "version": ["sinfo", "--version"],
    "ping": ["scontrol", "ping"],
    "partitions": ["sinfo", "--noheader", "--format=%P|%a|%D|%l"],
    "pmi": ["srun", "--mpi=list"],
    "pmix": ["srun", "--mpi=pmix", "--test-only", "--ntasks=1", "true"],  # loads the plug-in, and asks for no job
}
_HINTS = (
    (
        r"configuration source|slurm\.conf|DNS SRV",
        "this machine belongs to no cluster, or SLURM_CONF has to name its slurm.conf; jobs run here without Slurm: "
        "hpc-train submit --backend local",
    ),
    (r"[Mm]unge|credential|[Aa]uthentication", "munged does not run here, or has another key: ask your administrators"),
)
_WAIT = "the controller may be starting again: try once more in a minute, then ask your administrators"


@dataclass(frozen=True)
class Partition:
    """A partition: how many nodes, its time limit as Slurm writes it, whether it takes jobs (`up`)."""

    name: str
    nodes: int
    time_limit: str
    up: bool
    default: bool


class SlurmProbe:
    """Slurm's commands, started together; nothing where there is no sbatch."""

    def __init__(self, tools: Tools) -> None:
        self.here = shutil.which("sbatch") is not None
        self._tools = {what: tools.start(command, LIMIT_SECS) for what, command in _COMMANDS.items() if self.here}

    def findings(self) -> list[Finding]:
        """What they have found; partitions and PMI only where Slurm answers."""
        if not self.here:
            return [Finding("Slurm", "not here", "no sbatch on PATH; jobs run on this machine")]
        outcomes = {what: tool.outcome() for what, tool in self._tools.items()}
        slurm = slurm_finding(outcomes["version"], outcomes["ping"])
        if slurm.result != "ok":
            return [slurm]
        return [slurm, partitions_finding(outcomes["partitions"]), pmi_finding(outcomes["pmi"], outcomes["pmix"])]


def slurm_finding(version: Outcome, ping: Outcome) -> Finding:
    """Which Slurm this is, and whether its controller answers. Pure.

    Args:
        version: Of `sinfo --version`; ping: of `scontrol ping`.
    """
    number = re.search(r"\d+\.\d+\S*", version.out)
    name = number.group() if number else "sbatch is on PATH"
    up = re.search(r"Slurmctld\(\w+\) at (\S+) is UP", ping.out)
    if up:
        return Finding("Slurm", "ok", f"{name}, slurmctld on {up.group(1)} answers")
    down = re.findall(r"Slurmctld\(\w+\) at \S+ is DOWN", ping.out)
    problem = "; ".join(down) or ping.failure or version.failure or "scontrol ping says nothing of slurmctld"
    text = f"{problem}\n{ping.err}\n{version.err}"
    advice = next((advice for pattern, advice in _HINTS if re.search(pattern, text)), _WAIT)
    return Finding("Slurm", "warning", f"{name}; no slurmctld answers ({problem})", advice)


def parse_partitions(text: str) -> list[Partition]:
    """The partitions in what sinfo prints as `NAME[*]|up|NODES|LIMIT`, one or more lines each. Pure."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 4 or not fields[2].isdecimal():
            continue
        name, nodes = fields[0].rstrip("*"), int(fields[2])
        if name in found:
            nodes += found[name].nodes
        found[name] = Partition(name, nodes, fields[3], fields[1] == "up", fields[0].endswith("*"))
    return list(found.values())


def partitions_finding(outcome: Outcome) -> Finding:
    """Which partitions there are. Pure; `outcome` of sinfo."""
    if outcome.failure:
        return Finding("partitions", "warning", outcome.failure, _WAIT)
    partitions = parse_partitions(outcome.out)
    if not any(partition.up for partition in partitions):
        found = "none is up" if partitions else "there is none that you may use"
        return Finding("partitions", "warning", found, "ask your administrators which partition your jobs may use")
    shown = [_describe(partition) for partition in partitions[:_SHOWN_PARTITIONS]]
    more = len(partitions) - len(shown)
    return Finding("partitions", "ok", ", ".join(shown) + (f" and {more} more" if more else ""))


def pmi_finding(outcome: Outcome, loading: Outcome) -> Finding:
    """Which kinds of MPI srun can start by itself, and whether jobs may say so. Pure.

    Args:
        outcome: Of `srun --mpi=list`. loading: of an srun that loads the plug-in for PMIx.
    """
    kinds = parse_mpi_kinds(outcome.out + outcome.err)
    if outcome.failure or not kinds:
        return Finding("PMI", "warning", outcome.failure or "srun names no MPI types", "start ranks with mpirun")
    found = f"srun knows {', '.join(kinds)}"
    if not any(kind.startswith("pmix") for kind in kinds):
        return Finding("PMI", "ok", f"{found}, but not pmix: Open MPI's ranks want resources.launcher: mpirun")
    if re.search("can not load PMIx|Invalid MPI type", loading.out + loading.err):
        advice = "leave resources.launcher at mpirun, or have PMIx's library installed (Debian: libpmix-dev)"
        return Finding("PMI", "warning", f"{found}, but the plug-in for pmix cannot be loaded", advice)
    return Finding("PMI", "ok", f"{found}: resources.launcher may be srun")


def parse_mpi_kinds(text: str) -> list[str]:
    """The types in what `srun --mpi=list` prints, on either output and in any of its forms, "none" left out. Pure."""
    kinds: list[str] = []
    for line in text.splitlines():
        line = line.strip().removeprefix("srun:").strip()
        head, colon, rest = line.partition(":")
        words = rest.split(",") if colon and "versions" in head else [line]
        kinds += [word.strip() for word in words if re.fullmatch(r"[a-z][a-z0-9_/]*", word.strip())]
    return [kind for kind in dict.fromkeys(kinds) if kind != "none"]


def _describe(partition: Partition) -> str:
    notes = [counted(partition.nodes, "node")]
    if partition.time_limit != "infinite":
        notes.append(f"up to {partition.time_limit}")
    if partition.default:
        notes.insert(0, "default")
    if not partition.up:
        notes.append("down")
    return f"{partition.name} ({', '.join(notes)})"

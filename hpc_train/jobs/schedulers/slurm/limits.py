"""What a cluster has, as sinfo prints it, and what a job wants beyond that. Pure; nothing here runs a program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpc_train.config.resources import Resources, parse_memory, time_text
from hpc_train.errors import did_you_mean
from hpc_train.telemetry.units import counted

SINFO_FORMAT = "%P|%a|%l|%s|%D|%c|%m|%G|%f|%t"
"""Partition, up, time limit, nodes of a job; of each group of equal nodes: number, CPUs, MiB, GRES, features, state."""

_TIME = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d\d)")
_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}|infinite))?")
_UNUSABLE = frozenset(
    ["down", "drain", "drained", "draining", "drng", "fail", "failg", "failing", "futr", "inval", "n/a", "unk"]
)
_FEATURE = r"[A-Za-z0-9_.-]+"
_SHOWN = 3
"""So many other partitions are named at most."""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are alike.

    Attributes:
        cores: CPUs of each, as Slurm counts them.
        memory: MiB of each; None where Slurm is not configured with it: it then refuses jobs that ask for memory.
        gpus: Of each, of all types together.
        usable: They run jobs, or will once they are free or switched on: neither down nor drained.
        gpu: What Slurm calls their first type of GPU; "" where it has no name.
    """

    count: int
    cores: int
    memory: int | None
    gpus: int
    features: frozenset[str]
    usable: bool
    gpu: str = field(default="", compare=False)


@dataclass(frozen=True)
class Partition:
    """One partition.

    Attributes:
        default: Jobs that name no partition go here.
        up: It takes jobs and starts them.
        max_time_secs: The longest time limit; None: any.
        min_nodes, max_nodes: What one job may have; None: any number.
        groups: Its nodes.
    """

    name: str
    default: bool
    up: bool
    max_time_secs: int | None
    min_nodes: int
    max_nodes: int | None
    groups: tuple[NodeGroup, ...]

    @property
    def nodes(self) -> int:
        """How many nodes it has, those that are down too."""
        return sum(group.count for group in self.groups)


def sinfo_command() -> list[str]:
    """The command whose output parse_sinfo reads. Hidden partitions are in it, since jobs may name them."""
    return ["sinfo", "--all", "--noheader", "--exact", "--noconvert", f"--format={SINFO_FORMAT}"]


def parse_sinfo(text: str) -> list[Partition]:
    """The partitions in what sinfo_command() has printed, in its order; empty lines are left out.

    Raises:
        ValueError: A line is not of SINFO_FORMAT; the message shows it.
    """
    partitions: dict[str, Partition] = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            new = _partition(line)
        except ValueError as error:
            raise ValueError(f"sinfo printed {line[:200]!r}, which is not understood: {error}") from None
        known = partitions.get(new.name)
        partitions[new.name] = replace(new, groups=(*(known.groups if known else ()), *new.groups))
    return list(partitions.values())


def _partition(line: str) -> Partition:
    """The partition of one line, with the nodes of that line."""
    fields = [field.strip() for field in line.split("|")]
    if len(fields) != SINFO_FORMAT.count("|") + 1:
        raise ValueError(f"{len(fields)} fields")
    name, up, limit, sizes, count, cores, memory, gres, features, state = fields
    if not name.removesuffix("*"):
        raise ValueError("no name of a partition")
    nodes = NodeGroup(
        count=_number(count),
        cores=_number(cores),
        memory=mib if (mib := _number(memory)) > 1 else None,  # RealMemory=1 is Slurm's default
        gpus=_gpus(gres),
        features=frozenset(word for word in features.split(",") if word and word != "(null)"),
        usable=state.rstrip("~#%$@^!-+") not in _UNUSABLE and "*" not in state,
        gpu=found[1] if (found := re.search(r"(?:^|,)gpu:([A-Za-z][\w.-]*)", gres)) else "",
    )
    if sizes in ("infinite", "n/a"):
        least, most = 1, None
    elif match := _NODES.fullmatch(sizes):
        least, most = int(match[1]), None if match[2] == "infinite" else int(match[2] or match[1])
    else:
        raise ValueError(f"{sizes!r} is not a number of nodes")
    groups = (nodes,) if nodes.count else ()
    return Partition(name.removesuffix("*"), name.endswith("*"), up == "up", _secs(limit), least, most, groups)


def _number(text: str) -> int:
    """Of `16`, or of `16+` where nodes differ."""
    if not re.fullmatch(r"[0-9]{1,12}\+?", text):
        raise ValueError(f"{text!r} is not a number")
    return int(text.removesuffix("+"))


def _secs(text: str) -> int | None:
    """Of a time as sinfo prints it, `30:00` being half an hour; None for one without end."""
    if text in ("infinite", "n/a"):
        return None
    if match := _TIME.fullmatch(text):
        days, hours, minutes, secs = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + secs
    raise ValueError(f"{text!r} is not a time")


def _gpus(gres: str) -> int:
    """In `gpu:a100:4(S:0-1),shard:8`: four. A GPU without a number is one."""
    total = 0
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *rest = item.split(":")
        if kind == "gpu":
            total += int(rest[-1]) if rest and re.fullmatch(r"[0-9]{1,6}", rest[-1]) else 1
    return total


def shortfalls(resources: Resources, partitions: Sequence[Partition]) -> list[str]:
    """What the cluster cannot give, each a sentence: what is wanted, what there is, and what to change. Pure.

    Of a job whose roles have nodes of their own, each role's; the sentence begins with its name.
    Nodes that are down or drained count: Slurm lets a job wait for them. With several partitions (`partition: a,b`) it
    is enough that one of them can run the job, as for Slurm.
    """
    if resources.roles:
        return _of_roles(resources, partitions)
    names = [name for name in (resources.partition or "").split(",") if name]
    known = {partition.name: partition for partition in partitions}
    listed = ", ".join(known) or "none"
    if unknown := [name for name in names if name not in known]:
        hint = did_you_mean(unknown[0], known)
        return [f"partition: {unknown[0]!r} is not one of this cluster; {hint}there are: {listed}"]
    chosen = [known[name] for name in names] or [partition for partition in partitions if partition.default]
    if not chosen:
        return [f"partition: none is given, and this cluster has no default one; set `partition`; there are: {listed}"]
    lacking = [_lacks(resources, partition) for partition in chosen]
    if not all(lacking):
        return []
    others = [p.name for p in partitions if p not in chosen and not _lacks(resources, p)][:_SHOWN]
    instead = f"set `partition` to {' or '.join(others)}" if others else ""
    return [
        f"{what}; {', or '.join(filter(None, [change, instead]))}" for problems in lacking for what, change in problems
    ]


def _of_roles(resources: Resources, partitions: Sequence[Partition]) -> list[str]:
    """What the cluster cannot give of each role, or of all together."""
    found = [
        f"{role}: {what}"
        for role, one in zip(resources.roles, resources.components, strict=True)
        for what in shortfalls(one, partitions)
    ]
    if found:
        return found
    wanted = Counter(name for one in resources.components for name in [one.partition] * one.nodes)
    for partition in partitions:
        nodes = wanted[partition.name] + (wanted[None] if partition.default else 0)
        if nodes > partition.nodes:
            there = f"partition {partition.name!r} has {counted(partition.nodes, 'node')}"
            found.append(f"{', '.join(resources.roles)}: {nodes} nodes wanted together, but {there}; ask for fewer")
    return found


def _lacks(resources: Resources, partition: Partition) -> list[tuple[str, str]]:
    """What `partition` cannot give, and what the job may change."""
    lacking = []
    the_partition = f"partition {partition.name!r}"
    if not partition.up:
        lacking.append((f"{the_partition} is closed, so that it starts no jobs", "ask who runs the cluster"))
    limit, time = partition.max_time_secs, resources.time_secs
    if limit is not None and time is not None and time > limit:
        change = f"set `time: {time_text(limit)}` at most"
        lacking.append((f"time: {resources.time} is above the limit of {the_partition}, {time_text(limit)}", change))
    if not partition.nodes:
        return [*lacking, (f"{the_partition} has no nodes", "ask who runs the cluster")]
    nodes, most, least = resources.asked_nodes, partition.max_nodes, partition.min_nodes
    asked, spare = f"nodes: {resources.nodes}", resources.spare_nodes
    if spare:
        asked += f" and spare_nodes: {spare}"
    if nodes > partition.nodes:
        there = f"{the_partition} has {counted(partition.nodes, 'node')}"
        lacking.append((f"{asked} wanted, but {there}", f"set `nodes: {max(1, partition.nodes - spare)}` at most"))
    elif most is not None and nodes > most:
        there = f"{the_partition} gives a job {most} at most"
        lacking.append((f"{asked} wanted, but {there}", f"set `nodes: {max(1, most - spare)}` at most"))
    elif nodes < least:
        there = f"{the_partition} takes no job of less than {least}"
        lacking.append((f"{asked} wanted, but {there}", f"set `nodes: {least}` at least"))
    each = _node_lacks(resources, partition)
    fitting = sum(group.count for group in partition.groups if _fits(resources, group))
    if not each and fitting < nodes <= partition.nodes:
        wanted = f"{counted(nodes, 'node')} with {_each_node(resources)}"
        there = f"only {fitting} of the {partition.nodes} nodes of {the_partition} have all of that"
        lacking.append((f"nodes: {wanted} wanted, but {there}", "ask for fewer nodes or for less on each"))
    return lacking + each


def _node_lacks(resources: Resources, partition: Partition) -> list[tuple[str, str]]:
    """Requests for each node that none of the partition's nodes fulfils, looked at one by one."""
    lacking = []
    groups, of_nodes = partition.groups, f"of partition {partition.name!r}"
    cores, most_cores = _cores(resources), max(group.cores for group in groups)
    if cores > most_cores:
        product = (
            f"{resources.ranks_per_node} x {resources.cores_per_rank} = {counted(cores, 'core')} wanted on each node"
        )
        there = f"nodes {of_nodes} have {most_cores} at most"
        lacking.append((f"ranks_per_node x cores_per_rank: {product}, but {there}", "ask for less of the two"))
    if resources.memory is not None:
        most_memory = max(group.memory or 0 for group in groups)
        if not most_memory:
            what = f"memory: {resources.memory} wanted, but nodes {of_nodes} have none configured in Slurm"
            lacking.append((f"{what}, which refuses such jobs", "leave `memory` out"))
        elif parse_memory(resources.memory) > most_memory:
            there = f"nodes {of_nodes} have {_memory_text(most_memory)} at most"
            what = f"memory: {resources.memory} wanted on each node, but {there}"
            lacking.append((what, f"set `memory: {_memory_text(most_memory)}` at most"))
    most_gpus = max(group.gpus for group in groups)
    if resources.gpus_per_node > most_gpus:
        there = f"nodes {of_nodes} have {f'{most_gpus} at most' if most_gpus else 'none'}"
        what = f"gpus_per_node: {counted(resources.gpus_per_node, 'GPU')} wanted on each node, but {there}"
        lacking.append((what, f"set `gpus_per_node: {most_gpus}`"))
    if not any(_has_features(resources, group) for group in groups):
        features = sorted({feature for group in groups for feature in group.features})
        change = (
            f"choose among the features there are ({', '.join(features)})" if features else "leave `constraint` out"
        )
        lacking.append((f"constraint: {resources.constraint!r} is what no node {of_nodes} has", change))
    return lacking


def _fits(resources: Resources, group: NodeGroup) -> bool:
    has_memory = resources.memory is None or parse_memory(resources.memory) <= (group.memory or 0)
    has_rest = group.cores >= _cores(resources) and group.gpus >= resources.gpus_per_node
    return has_memory and has_rest and _has_features(resources, group)


def _has_features(resources: Resources, group: NodeGroup) -> bool:
    """False where the constraint is words joined by `&`, or by `|`, that do not hold; other forms are left to Slurm."""
    constraint = resources.constraint or ""
    if re.fullmatch(rf"{_FEATURE}(&{_FEATURE})*", constraint):
        return group.features.issuperset(constraint.split("&"))
    if re.fullmatch(rf"{_FEATURE}(\|{_FEATURE})*", constraint):
        return not group.features.isdisjoint(constraint.split("|"))
    return True


def _cores(resources: Resources) -> int:
    """Of each node."""
    return resources.ranks_per_node * resources.cores_per_rank


def _each_node(resources: Resources) -> str:
    gpus, memory, constraint = resources.gpus_per_node, resources.memory, resources.constraint
    parts = [
        counted(_cores(resources), "core"),
        *([memory] if memory else []),
        *([counted(gpus, "GPU")] if gpus else []),
        *([f"the constraint {constraint!r}"] if constraint else []),
    ]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _memory_text(mib: int) -> str:
    """As a job file writes it: `64G`, or `64000M` where it is no whole number of those."""
    return f"{mib >> 10}G" if mib % 1024 == 0 else f"{mib}M"

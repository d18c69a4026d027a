"""What a job asks of a cluster: nodes, ranks, cores, memory, GPUs, time. Frozen, validated where it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from hpc_train.config.container import ContainerKey

TIER_PATTERN = r"^[A-Z][A-Z0-9_]{0,63}$"
CUSTOM = "CUSTOM"
"""The tier that sets nothing: all comes from the job file."""
WARNING_SECS = 120
"""How long before the time limit the ranks are asked to save, where there is time for that."""

_WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.,@+:/-]{0,255}$"
_CONSTRAINT = r"^[A-Za-z0-9_\[(][A-Za-z0-9_.,&|*\[\]()-]{0,255}$"
_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=[^\0-\x1f\x7f\\]+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d{1,3}):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")

_SET_BY_SUBMIT = frozenset(
    "account array chdir clusters comment constraint cpus-per-task dependency error export export-file gpus "  # noqa: SIM905
    "gpus-per-node gpus-per-task help input job-name mem mem-per-cpu mem-per-gpu no-requeue nodes ntasks "
    "ntasks-per-node open-mode output parsable partition qos requeue signal test-only time usage version wait "
    "wrap".split()
)
"""Options of sbatch that are keys of their own here, or that a submitted job needs as they are."""


def parse_time(value: Any) -> Any:
    """Seconds, from "HH:MM:SS", "D-HH:MM:SS" or a number of minutes. Pure.

    Raises:
        ValueError: It is none of them, or less than a minute, which is what Slurm counts in.
    """
    if isinstance(value, str) and (match := _TIME.fullmatch(value)):
        days, hours, minutes, secs = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
        total = ((days * 24 + hours) * 60 + minutes) * 60 + secs
    elif isinstance(value, int) and not isinstance(value, bool):
        total = value * 60
    else:
        raise ValueError(f"{value!r} is not a time; allowed: HH:MM:SS, D-HH:MM:SS, or minutes as a number")
    if not 60 <= total <= 366 * 86400:
        raise ValueError(f"{value!r} is not allowed; a minute at least, a year at most")
    return total


def time_text(secs: int) -> str:
    """As sbatch takes it: "1-02:03:04" or "02:03:04". Pure."""
    days, rest = divmod(secs, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def parse_memory(value: Any) -> Any:
    """MiB, from "500M", "16G", "1T". Pure.

    Raises:
        ValueError: It is none of them.
    """
    units = {"M": 1, "G": 1 << 10, "T": 1 << 20}
    if isinstance(value, str) and (match := re.fullmatch(r"([1-9]\d{0,8})([MGT])B?", value)):
        return int(match[1]) * units[match[2]]
    raise ValueError(f"{value!r} is not a size of memory; allowed: such as 500M, 16G or 1T, for each node")


def _time_in(value: Any) -> Any:
    return None if value is None else time_text(parse_time(value))


def _memory_in(value: Any) -> Any:
    if value is not None:
        parse_memory(value)
    return value


def _path_in(path: str) -> str:
    if not path.strip() or len(path) > 4096 or re.search(r"[\0-\x1f\x7f\\]", path):
        raise ValueError(f"{path!r} is not allowed; allowed: the path of a file, of one line and without backslashes")
    return path


def values_of_variables(values: Mapping[str, Any]) -> dict[str, str]:
    """Variables by name, as a shell has them: `true` and numbers as their texts. Pure.

    Raises:
        ValueError: A value is none for a variable.
    """
    for name, value in values.items():
        if isinstance(value, dict | list) or value is None or re.search(r"[\0-\x1f\x7f]", str(value)):
            raise ValueError(f"{name}: its value is not allowed; allowed: text of one line, or a number")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]
Word = Annotated[str, Field(pattern=_WORD)]
Bind = Literal["none", "core", "numa", "auto"]
FilePath = Annotated[str, AfterValidator(lambda path: _path_in(path))]


class ResourceOptions(BaseModel):
    """What a tier or a job file may set; None where it leaves that to others.

    Attributes:
        nodes: How many nodes.
        min_nodes: With so many left of them a submitted job goes on after others were lost; None: with all alone.
        spare_nodes: So many more are asked for, and stay idle until one is lost.
        ranks_per_node: MPI ranks on each.
        cores_per_rank: Cores of each rank, which become its threads (OMP_NUM_THREADS).
        memory: Of each node, such as "16G"; None: what the partition gives.
        gpus_per_node: GPUs of each node; a rank takes one of them.
        partition, account, qos, constraint: As sbatch has them.
        time: Time limit, "HH:MM:SS" or "D-HH:MM:SS"; minutes as a number.
        modules: To be loaded first, in this order.
        environment: Variables to set, by name; none of HPC_TRAIN_….
        sbatch: Further options of sbatch, each "--option" or "--option=value".
        launcher: What starts the ranks of a Slurm job: "mpirun" or "srun".
        bind: What ranks are bound to: cores of their own, NUMA domains, or nothing; auto: domains where that does.
        pack: The environment as one file that each node unpacks: "auto" (made if missing), "none", or its path.
        requirements: A pip file of packages that the job has beside those of the environment.
        container: What the ranks run in: the path of an image, or `{image, runtime, binds}`.
        warning_secs: How long before the time limit the ranks are asked to save.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: Count | None = None
    ranks_per_node: Count | None = None
    min_nodes: Count | None = None
    spare_nodes: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] | None = None
    cores_per_rank: Count | None = None
    memory: Annotated[str | None, BeforeValidator(_memory_in)] = None
    gpus_per_node: Annotated[int, Field(ge=0, le=1024, strict=True)] | None = None
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(pattern=_CONSTRAINT)] | None = None
    time: Annotated[str | None, BeforeValidator(_time_in)] = None
    modules: tuple[Word, ...] | None = None
    environment: dict[str, str] | None = None
    sbatch: tuple[str, ...] | None = None
    launcher: Literal["mpirun", "srun"] | None = None
    bind: Bind | None = None
    pack: FilePath | None = None
    requirements: FilePath | None = None
    container: ContainerKey = None
    warning_secs: Annotated[int, Field(ge=10, le=7 * 86400, strict=True)] | None = None

    @field_validator("environment", mode="before")
    @classmethod
    def _variables(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name in values:
            if not _VARIABLE.fullmatch(str(name)):
                raise ValueError(f"{name!r} is not the name of a variable; allowed: letters, digits and underscores")
            if str(name).startswith("HPC_TRAIN_"):
                raise ValueError(
                    f"{name}: variables that begin with HPC_TRAIN_ are set by hpc_train itself; leave it out"
                )
        return values_of_variables(values)

    @field_validator("sbatch")
    @classmethod
    def _options(cls, options: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for option in options or ():
            if not _OPTION.fullmatch(option):
                allowed = "--option or --option=value, on one line and without backslashes"
                raise ValueError(f"{option!r} is not allowed; allowed: {allowed}")
            name = option[2:].partition("=")[0]
            if any(known.startswith(name) for known in _SET_BY_SUBMIT):  # sbatch takes abbreviations
                raise ValueError(
                    f"--{name} is set by hpc-train submit; use the key of `resources` for it where there is one"
                )
        return options

    @model_validator(mode="after")
    def _warned_in_time(self) -> ResourceOptions:
        if self.time is not None and self.warning_secs is not None and 2 * self.warning_secs > parse_time(self.time):
            raise ValueError(
                f"`warning_secs`: {self.warning_secs} is more than half of the time limit {self.time}: the job would "
                "be asked to leave before it has done much"
            )
        return self


class RoleOptions(BaseModel):
    """What the ranks of one role have of their own; None: as the job. Attributes as in ResourceOptions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: Count | None = None
    ranks_per_node: Count | None = None
    cores_per_rank: Count | None = None
    memory: Annotated[str | None, BeforeValidator(_memory_in)] = None
    gpus_per_node: Annotated[int, Field(ge=0, le=1024, strict=True)] | None = None
    partition: Word | None = None
    constraint: Annotated[str, Field(pattern=_CONSTRAINT)] | None = None


ROLES = ("chief", "parameter_servers", "workers", "evaluator")
"""Keys of `resources` with RoleOptions, in the order of their ranks."""
_FEW = ("chief", "parameter_servers", "evaluator")
"""Roles of one rank on one node, unless they say otherwise, whatever the tier has."""


class ResourcesSection(ResourceOptions):
    """`resources:` of a job file: a tier, and what is to be different from it, for all ranks or for those of a role.

    Attributes:
        chief, parameter_servers, workers, evaluator: What ranks of that role have on nodes of their own: a
            heterogeneous job of Slurm. Ranks are numbered in this order of the roles. chief, parameter_servers and
            evaluator are one rank, and parameter_servers have no GPUs, unless they say otherwise.
    """

    tier: Annotated[str, Field(pattern=TIER_PATTERN)] = "BASIC"
    chief: RoleOptions | None = None
    parameter_servers: RoleOptions | None = None
    workers: RoleOptions | None = None
    evaluator: RoleOptions | None = None


class Resources(ResourceOptions):
    """What a job gets: a tier with the job file's changes, complete. Attributes as in ResourcesSection."""

    tier: str
    chief: RoleOptions | None = None
    parameter_servers: RoleOptions | None = None
    workers: RoleOptions | None = None
    evaluator: RoleOptions | None = None
    nodes: Count = 1
    spare_nodes: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 0
    ranks_per_node: Count = 1
    cores_per_rank: Count = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=1024, strict=True)] = 0
    modules: tuple[Word, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    sbatch: tuple[str, ...] = ()
    launcher: Literal["mpirun", "srun"] = "mpirun"
    bind: Bind = "auto"
    pack: FilePath = "none"

    @model_validator(mode="after")
    def _nodes_to_lose(self) -> Resources:
        problems = []
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            problems.append(f"`min_nodes`: {self.min_nodes} is more than `nodes`: {self.nodes}; allowed: 1 to `nodes`")
        if self.spare_nodes and self.nodes == 1:
            problems.append(
                f"`spare_nodes`: {self.spare_nodes} is of no use to a job of one node: its batch script would be lost "
                "with it; leave it out"
            )
        if (roles := self.roles) and "workers" not in roles:
            problems.append(f"`{roles[0]}` has nodes of its own, and no `workers` have; add `workers`")
        for name in ("min_nodes", "spare_nodes"):
            if roles and getattr(self, name):
                problems.append(f"`{name}` is not for a job whose roles have nodes of their own; leave it out")
        if roles and self.pack != "none":
            problems.append("`pack` is not for a job whose roles have nodes of their own; leave it out")
        if self.container is not None:
            problems += [
                f"`{name}` is not for a job in a container, whose image has all that the ranks import; leave it out"
                for name, given in (("pack", self.pack != "none"), ("requirements", self.requirements is not None))
                if given
            ]
        if self.launcher == "srun" and (self.roles or self.least_nodes is not None):
            problems.append(
                "`launcher`: srun starts no job that goes on without lost nodes (`min_nodes`, `spare_nodes`), or whose "
                "roles have nodes of their own; leave those out, or take `launcher: mpirun`"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def least_nodes(self) -> int | None:
        """With so many nodes the job goes on after it has lost some; None: it goes back to the queue."""
        return self.nodes if self.min_nodes is None and self.spare_nodes else self.min_nodes

    @property
    def asked_nodes(self) -> int:
        """Those of its ranks, and spare ones."""
        return self.nodes + self.spare_nodes

    @property
    def roles(self) -> list[str]:
        """Those with nodes of their own, in the order of their ranks; none: all ranks are alike."""
        return [role for role in ROLES if getattr(self, role) is not None]

    @property
    def components(self) -> list[Resources]:
        """What the ranks of each role have, in their order, without roles; of a job without roles, the job itself."""
        if not self.roles:
            return [self]
        found = []
        for role in self.roles:
            few = {"nodes": 1, "ranks_per_node": 1} if role in _FEW else {}
            if role == "parameter_servers":
                few["gpus_per_node"] = 0
            own = getattr(self, role).model_dump(exclude_none=True)
            found.append(self.model_copy(update={**dict.fromkeys(ROLES), **few, **own}))
        return found

    @property
    def ranks(self) -> int:
        """World size."""
        return sum(one.nodes * one.ranks_per_node for one in self.components)

    @property
    def time_secs(self) -> int | None:
        """The time limit, or None where the partition's own holds."""
        return None if self.time is None else int(parse_time(self.time))

    @property
    def warns_secs(self) -> int:
        """How long before the time limit the ranks are asked to save: WARNING_SECS, or a quarter of a short limit."""
        if self.warning_secs is not None:
            return self.warning_secs
        return WARNING_SECS if self.time_secs is None else min(WARNING_SECS, self.time_secs // 4)


def laid_over(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `given` sets instead; environments are merged, name by name. Pure."""
    merged = {**base, **given}
    if "environment" in base and "environment" in given:
        merged["environment"] = {**base["environment"], **given["environment"]}
    return merged


def resolve(section: ResourcesSection, tier: ResourceOptions) -> Resources:
    """`tier` with what `section` sets instead, null included; environments are merged, name by name. Pure.

    Raises:
        ValueError: The two do not fit together.
    """
    options = section.model_dump(exclude={"tier"}, exclude_unset=True)
    may_be_none = (
        "min_nodes",
        "memory",
        "partition",
        "account",
        "qos",
        "constraint",
        "time",
        "requirements",
        "container",
        "warning_secs",
    )
    given = {name: value for name, value in options.items() if value is not None or name in may_be_none}
    base = {name: value for name, value in tier.model_dump().items() if value is not None}
    return Resources(**laid_over(base, given), tier=section.tier)

"""A first version of a site file, from what this machine shows; and what the doctor says of the one there is."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_train.config.resources import TIER_PATTERN, time_text
from hpc_train.data.staging.folder import REMOTE, type_of
from hpc_train.doctor.slurm import parse_mpi_kinds
from hpc_train.doctor.tools import Finding, Tools
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.schedulers import choose
from hpc_train.jobs.schedulers.base import NodeKind
from hpc_train.jobs.site.site import SITE_FILE, load_site
from hpc_train.processes import user_name
from hpc_train.text import visible

TOOL_SECS = 10.0
HOUR = 3600
SCRATCHES = ("/local", "/localscratch", "/local_scratch", "/scratch", "/nvme")
NETWORKS = Path("/sys/class/net")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+:/-]{0,255}")


@dataclass(frozen=True)
class Found:
    """What was found here.

    Attributes:
        kinds: Of nodes, those of the default partition first; `no_kinds` says why there are none.
        account: The user's own default one.
        modules: Those that are loaded.
        mpirun: Its path; None: there is none on PATH.
        pmi: The kinds of MPI that srun names.
        interface: Of an InfiniBand network.
        scratches: Folders on disks of this machine, with their free GB.
    """

    kinds: Sequence[NodeKind] = ()
    no_kinds: str = ""
    account: str | None = None
    modules: Sequence[str] = ()
    mpirun: str | None = None
    pmi: Sequence[str] = ()
    interface: str | None = None
    scratches: Sequence[tuple[str, int]] = ()


def site_finding(env: Mapping[str, str]) -> Finding:
    """Which site file is read, or why none is."""
    try:
        site = load_site(env)
    except UserError as error:
        return Finding("site", "fails", str(error), "mend the file; until then hpc-train submit refuses jobs", True)
    if site.path is None:
        advice = "write a first one for all users: hpc-train doctor --site"
        return Finding("site", "not here", f"no site file ({SITE_FILE}, HPC_TRAIN_SITE)", advice)
    return Finding("site", "ok", str(site.path))


def first_version(env: Mapping[str, str]) -> str:
    """The text of a site file, from what is found here; some seconds."""
    return draft(_look(env))


def draft(found: Found) -> str:
    """The text of a site file; what was not found is in it as a comment. Pure."""
    lines = [
        "# The site file of hpc_train, a first version by `hpc-train doctor --site`: read it, mend it, put it where",
        f"# all nodes read it, as {SITE_FILE}, or name it by HPC_TRAIN_SITE. None but its owner may write it.",
        "",
        "defaults: # for all tiers, where a tier does not say",
        *(f"  {line}" for line in _defaults(found)),
        "",
        *_mpi(found),
        "",
        *_folders(found),
        "",
    ]
    tiers = _tiers(found.kinds)
    lines += ["tiers:", *tiers] if tiers else [f"# no tiers: {found.no_kinds or 'those built in do'}"]
    return "\n".join([*(visible(line) for line in lines), ""])


def _defaults(found: Found) -> list[str]:
    lines = ["environment: {}"]
    if found.kinds:
        chosen, why = found.kinds[0], "the default one" if found.kinds[0].default else "there is no default one"
        lines.append(f"partition: {json.dumps(chosen.partition)} # {why}")
    else:
        lines.append("# partition: batch")
    own = f"your own default is {found.account}; " if found.account else ""
    lines.append(f"# account: {found.account or 'physics'} # {own}only where all users share one")
    if found.modules:
        lines.append(f"modules: {json.dumps(list(found.modules))} # those loaded here: leave what jobs need")
    else:
        lines.append("# modules: [openmpi/4.1, cuda/12.4] # none is loaded here")
    pmix = next((kind for kind in found.pmi if kind.startswith(("pmix", "cray"))), None)
    known = f"srun knows {', '.join(found.pmi)}" if found.pmi else "srun names no MPI"
    if found.mpirun is not None:
        lines.append(f"# launcher: mpirun # {found.mpirun}; {known}")
    else:
        mark = "" if pmix is not None else "# "
        lines.append(f"{mark}launcher: srun # no mpirun is on PATH; {known}")
    return lines


def _mpi(found: Found) -> list[str]:
    if found.interface is None:
        return [
            "# no InfiniBand is found here; with one, such as:",
            "# mpi: {OMPI_MCA_btl_tcp_if_include: ib0, NCCL_SOCKET_IFNAME: ib0}",
        ]
    name = json.dumps(found.interface)
    return [
        "mpi: # for ranks, where the user has not set them",
        f"  OMPI_MCA_btl_tcp_if_include: {name} # InfiniBand",
        f"  NCCL_SOCKET_IFNAME: {name}",
    ]


def _folders(found: Found) -> list[str]:
    lines = ["# root: /work/{user}/hpc_train # where job-dirs go; else runs, below the working directory"]
    for path, gigabytes in found.scratches:
        mark = "" if path in SCRATCHES and not any(line.startswith("scratch") for line in lines) else "# "
        lines.append(f"{mark}scratch: {json.dumps(path)} # {gigabytes} GB are free here; all nodes need such a folder")
    return lines if found.scratches else [*lines, "# scratch: /local # a folder on each node's own disk"]


def _tiers(kinds: Sequence[NodeKind]) -> list[str]:
    lines: list[str] = []
    names: set[str] = set()

    def add(name: str, kind: NodeKind, about: str, nodes: int, ranks: int, cores: int, gpus: int, secs: int) -> None:
        if name in names or not re.fullmatch(TIER_PATTERN, name) or not _WORD.fullmatch(kind.partition):
            return
        names.add(name)
        secs = secs if kind.max_time_secs is None else max(60, min(secs, kind.max_time_secs))
        lines.extend(
            [
                f"  {name}:",
                f"    about: {json.dumps(visible(about)[:200])}",
                f"    nodes: {nodes}",
                f"    ranks_per_node: {ranks}",
                f"    cores_per_rank: {cores}",
                *([f"    gpus_per_node: {gpus}"] if gpus else []),
                f"    partition: {json.dumps(kind.partition)}",
                f"    time: {json.dumps(time_text(secs))}",
            ]
        )

    for kind in kinds:
        most = kind.count if kind.max_nodes is None else min(kind.count, kind.max_nodes)
        if not kind.gpus:
            place = re.sub(r"\W", "_", kind.partition).upper().lstrip("_0123456789")
            ranks = min(2, kind.cores)
            add("BASIC", kind, "two ranks on one node, to try things out", 1, ranks, 1, 0, HOUR)
            add(f"{place}_NODE", kind, f"one node of {kind.partition}, all its cores", 1, kind.cores, 1, 0, 12 * HOUR)
            if most > 1:
                about = f"two nodes of {kind.partition}, all their cores"
                add(f"{place}_2_NODES", kind, about, 2, kind.cores, 1, 0, 12 * HOUR)
            continue
        gpu = re.sub(r"\W", "_", kind.gpu or "gpu").upper().lstrip("_0123456789") or "GPU"
        cores = max(1, kind.cores // kind.gpus)
        add("BASIC_GPU", kind, f"one {kind.gpu or 'GPU'}", 1, 1, cores, 1, HOUR)
        for nodes in (1, 2) if most > 1 else (1,):
            of = f"{nodes * kind.gpus} {kind.gpu or 'GPU'}, one rank for each"
            add(f"{gpu}_{nodes * kind.gpus}", kind, of, nodes, kind.gpus, cores, kind.gpus, 12 * HOUR)
    return lines


def _look(env: Mapping[str, str]) -> Found:
    kinds, why = [], ""
    try:
        scheduler = choose(None, env)
        kinds = scheduler.node_kinds()
        why = "" if kinds else "no cluster with partitions is found here"
    except (SchedulerError, UserError) as error:
        why = visible(str(error)).replace("\n", " ")
    with Tools() as tools:
        account = tools.start(
            ["sacctmgr", "--noheader", "--parsable2", "show", "user", user_name(), "format=DefaultAccount"], TOOL_SECS
        )
        pmi = tools.start(["srun", "--mpi=list"], TOOL_SECS)
        listed, mine = pmi.outcome(), account.outcome()
    name = mine.out.strip().splitlines()[0] if mine.failure is None and mine.out.strip() else None
    return Found(
        kinds=kinds,
        no_kinds=why,
        account=name if name and _WORD.fullmatch(name) else None,
        modules=[word for word in env.get("LOADEDMODULES", "").split(":") if _WORD.fullmatch(word)],
        mpirun=shutil.which("mpirun", path=env.get("PATH")),
        pmi=[] if listed.failure else parse_mpi_kinds(listed.out + listed.err),
        interface=_interface(),
        scratches=_scratches(env),
    )


def _interface() -> str | None:
    with suppress(OSError):
        return next((name for name in sorted(os.listdir(NETWORKS)) if re.fullmatch(r"ib\w{1,14}", name)), None)
    return None


def _scratches(env: Mapping[str, str]) -> list[tuple[str, int]]:
    """Folders on disks of this machine alone, with their free GB."""
    found = []
    for path in dict.fromkeys([*SCRATCHES, env.get("TMPDIR") or "/tmp"]):
        with suppress(OSError, ValueError):
            if Path(path).is_dir() and path.startswith("/") and type_of(Path(path)) not in REMOTE:
                space = os.statvfs(path)
                found.append((path, space.f_bavail * space.f_frsize // 10**9))
    return found

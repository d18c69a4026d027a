"""environment.json, and the table of ranks that a job prints when it starts."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from hpc_train.git import Git
from hpc_train.text import visible

PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "horovod", "mpi4py", "h5py", "numpy")
RANK_COLUMNS = ("rank", "role", "host", "cores", "device", "shards", "seed")
LEAST_CUT = {"host": 16, "shards": 24}
"""Columns of these that can be cut, and to what width, with the blanks after them."""

_NOTED = re.compile(
    "(SLURM|OMPI|MPICH|I_MPI|UCX|FI|HOROVOD|HPC_TRAIN|TF|XLA|KERAS|CUDA|NVIDIA|NCCL|OMP|KMP|GOMP|MKL"
    "|OPENBLAS|HDF5|MALLOC)_.+|(LD_LIBRARY_|LD_PRE|PYTHON|LOADED|CONDA_|VIRTUAL_).+|PATH|HOSTNAME|LANG|TMPDIR|TZ"
)
"""Names of the variables that decide how a job runs."""

_SECRET_NAME = re.compile(
    "TOKEN|SECRET|PASS(WORD|WD|PHRASE|CODE)|PASS$|PWD|KEY|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|JWT|BEARER|CERT",
    re.IGNORECASE,
)
KEY_FORM = (
    r"(?<![a-z0-9])((AKIA|ASIA|AROA)[A-Z0-9]{16}"  # Amazon; on the next line GitHub, Hugging Face, …
    r"|(gh[oprsu]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AIza|ya29\.|npm_|pypi-|wandb_|nvapi-)[\w-]{10}"
    r"|eyJ[\w-]{5,}\.)"  # a JSON web token
)
"""How keys begin that can be known by their form, whatever the case of their letters."""
_SECRET_VALUE = re.compile(
    rf"""
      [a-z][a-z0-9+.-]*://\S+@                                       # a URL with user:password@ or token@
    | [?&;][^=&\s]*(token|key|sig|secret|password|auth)[^=&\s]*=     # a URL with one among its parameters
    | -----BEGIN | \b(bearer|basic)\s+\S | \b(password|passwd|secret|token)\s*[=:]
    | {KEY_FORM}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_WORD = re.compile(r"(?<![A-Za-z0-9/+])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])|[A-Za-z0-9_+-]{20,}")
"""Long enough for a key; the first kind is Amazon's, which may hold slashes."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


MASKED_VARIABLE = "HPC_TRAIN_MASKED"
"""Names the variables, with blanks between them, that the job's `resources.environment` has set."""
SHORTEST_SECRET = 6
"""In characters; shorter values, such as 0 and true, are in any text."""


def describe_environment(ranks: list[dict[str, Any]], code_folder: Path) -> dict[str, Any]:
    """Versions, the commit of the user's code, what each rank runs on, and this process's `noted_variables`."""
    return {
        "hpc_train": importlib.import_module("hpc_train").__version__,
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "mpi": _mpi_library(),
        "platform": platform.platform(),
        "commit": Git(code_folder).commit(),
        "ranks": ranks,
        "environment": noted_variables(os.environ),
    }


def without_secrets(text: str, env: Mapping[str, str]) -> str:
    """`text`, such as an error's, with *** for the values that the job's own secret variables have in `env`. Pure."""
    values = (env.get(name, "") for name in env.get(MASKED_VARIABLE, "").split())
    for value in sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def noted_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that decide how a job runs, by name, without any that may hold a secret. Pure."""
    masked = env.get(MASKED_VARIABLE, "").split()
    return {
        name: "***" if name in masked else value.encode(errors="surrogateescape").decode(errors="replace")
        for name, value in sorted(env.items())
        if _NOTED.fullmatch(name) and not looks_secret(name, value)
    }


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable may hold a secret, by its name or by what it holds. Pure; in doubt it says so."""
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        return True
    return any(_looks_random(word) for word in _WORD.findall(_UUID.sub("", value)))


def _looks_random(word: str) -> bool:
    """Whether `word`, 20 characters or more, is a key rather than a name: hexadecimal digits, or all kinds mixed."""
    if re.search("[0-9a-fA-F]{32}", word.replace("-", "")) and len(set(word)) > 6:
        return True
    kinds = [bool(re.search(kind, word)) for kind in ("[a-z]", "[A-Z]", "[0-9]")]
    turns = sum(_kind(a) != _kind(b) for a, b in itertools.pairwise(word))
    return all(kinds) and turns >= len(word) / 3


def _kind(character: str) -> str:
    return "0" if character.isdigit() else "a" if character.islower() else "A" if character.isupper() else "-"


def rank_table(ranks: list[dict[str, Any]], width: int) -> Table:
    """One line a rank, in a terminal of `width` columns.

    Where there is no room, without seeds and cores, in this order; then shards and hosts are cut; and without devices
    and roles where that does not do.
    """
    texts = [{name: visible(str(rank[name])) for name in RANK_COLUMNS} for rank in ranks]
    sizes = {name: max(len(name), *(len(text[name]) for text in texts)) + 2 for name in RANK_COLUMNS}
    least = {name: min(size, LEAST_CUT.get(name, size)) for name, size in sizes.items()}
    names = list(RANK_COLUMNS)
    for name, sized in (("seed", sizes), ("cores", sizes), ("device", least), ("role", least)):
        if sum(sized[each] for each in names) > width + 2:
            names.remove(name)
    for name in ("shards", "host"):
        much = sum(sizes[each] for each in names) - width - 2
        sizes[name] = max(least[name], sizes[name] - max(0, much))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right" if name in ("rank", "cores") else "left", no_wrap=True)
    for text in texts:
        table.add_row(*(_shortened(text[name], sizes[name] - 2) for name in names))
    return table


def binding_lines(ranks: list[dict[str, Any]]) -> list[str]:
    """What the ranks are bound to, a line for the nodes that are alike; none where nobody has bound any."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        by_host.setdefault(str(rank["host"]), []).append(rank)
    alike: dict[str, list[str]] = {}
    for host, own in by_host.items():
        if any(rank.get("binding", {}).get("by") for rank in own):
            alike.setdefault("; ".join(_bound_in_words(place, rank) for place, rank in enumerate(own)), []).append(host)
    return [
        f"cores on {hosts[0]}{f' and {len(hosts) - 1} more alike' if hosts[1:] else ''}: {words}"
        for words, hosts in alike.items()
    ]


def _bound_in_words(place: int, rank: Mapping[str, Any]) -> str:
    found = rank.get("binding", {})
    if not found.get("by"):
        return f"local rank {place} is not bound ({found.get('why', 'why is not known')})"
    numa = f" (NUMA {found['numa']})" if "numa" in found else ""
    device = "" if str(rank.get("device", "CPU")).startswith("CPU") else f" with {rank['device']}"
    return f"local rank {place}{device} on {found['cpus']}{numa} by {found['by']}"


def _shortened(text: str, width: int) -> Text:
    """Of what is too long the beginning and the end: hosts of one cluster differ in either."""
    end = (width - 1) // 2
    return Text(text if len(text) <= width else f"{text[: width - 1 - end]}…{text[len(text) - end :]}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi_library() -> str | None:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi.Get_library_version().splitlines()[0].strip("\0 ") if mpi else None

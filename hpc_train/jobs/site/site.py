"""The site file: what a site sets for all of its users, beside tiers. Local."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.config.resources import ResourceOptions
from hpc_train.errors import UserError
from hpc_train.jobs.site.sections import SiteFile, read_sections
from hpc_train.processes import user_name

SITE_VARIABLE = "HPC_TRAIN_SITE"
SITE_FILE = Path("/etc/hpc_train/site.yaml")
SCRATCH_VARIABLE = "HPC_TRAIN_SCRATCH"
"""For ranks: the folder on each node's own disk, as data/staging reads it."""


@dataclass(frozen=True)
class Site:
    """What a site file says; all empty where there is none.

    Attributes:
        path: The file; None: there is none.
        root: Where job-dirs go by default; None: `runs`.
        variables: For ranks, where the user has not set them: those of its MPI, and SCRATCH_VARIABLE.
        defaults: For all tiers.
    """

    path: Path | None = None
    root: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    defaults: ResourceOptions = field(default_factory=ResourceOptions)


def site_file(env: Mapping[str, str]) -> Path | None:
    """The site file that is read; None where there is none.

    Raises:
        UserError: The one that $HPC_TRAIN_SITE names is not there, or all users may write in it, and so decide what
            the jobs of others run.
    """
    named = env.get(SITE_VARIABLE)
    path = Path(named) if named else SITE_FILE
    where = f"{SITE_VARIABLE}: {path}" if named else str(path)
    try:
        found = path.resolve(strict=True)
        open_to_all = [place for place in (found, found.parent) if _is_open(place.stat().st_mode)]
    except FileNotFoundError as error:
        if not named:
            return None
        raise UserError(f"{where}: {error.strerror}; set it to the site file of your site, or unset it") from None
    except OSError as error:
        advice = f"ask those who run this site, or set {SITE_VARIABLE} to another"
        raise UserError(f"{where}: the site file cannot be looked at: {error.strerror}; {advice}") from None
    if open_to_all:
        raise UserError(
            f"{where}: the site file is not trusted: {open_to_all[0]} may be written by all users, who would decide "
            f"what the jobs of others run; chmod o-w {shlex.quote(str(open_to_all[0]))}"
        )
    return path


def _is_open(mode: int) -> bool:
    """Whether all users may write; in a sticky folder, as /tmp, each his own."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def load_site(env: Mapping[str, str]) -> Site:
    """The site.

    Raises:
        UserError: As `site_file`; or with all mistakes of the file.
    """
    path = site_file(env)
    if path is None:
        return Site()
    content = read_sections(path, SiteFile)
    variables = dict(content.mpi or {})
    if content.scratch is not None:
        variables[SCRATCH_VARIABLE] = _filled(content.scratch)
    root = None if content.root is None else Path(_filled(content.root))
    return Site(path, root, variables, content.defaults or ResourceOptions())


def adopt(env: MutableMapping[str, str]) -> None:
    """Sets the site's variables in `env`, for ranks that are started with it, where they are not set.

    Raises:
        UserError: As `load_site`.
    """
    for name, value in load_site(env).variables.items():
        env.setdefault(name, value)


def exports(variables: Mapping[str, str]) -> list[str]:
    """Lines of bash that set `variables` where they are not set. Pure."""
    return [f"[[ -v {name} ]] || export {name}={shlex.quote(value)}" for name, value in variables.items()]


def shell_lines(site: Site) -> list[str]:
    """What slurm/programs.sh sources: modules, unless HPC_TRAIN_MODULES names others, and variables. Pure."""
    lines = []
    if site.defaults.modules:
        complaint = f"{site.path} names modules, but there is no 'module' command here"
        lines += [
            "if [[ -z ${HPC_TRAIN_MODULES:-} ]]; then",
            f"    type module >/dev/null 2>&1 || fail {shlex.quote(complaint)}",
            "    set +u",
            f"    module load {shlex.join(site.defaults.modules)}",
            "    set -u",
            "fi",
        ]
    options = {"LAUNCHER": site.defaults.launcher, "BIND": site.defaults.bind}
    own = {f"HPC_TRAIN_{name}": value for name, value in options.items() if value is not None}
    return [*lines, *exports({**(site.defaults.environment or {}), **site.variables, **own})]


def _filled(path: str) -> str:
    """`path` with the user's name; see sections.py."""
    name = user_name()
    return path.replace("{user}", name.replace(os.sep, "_"))

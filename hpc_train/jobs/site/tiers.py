"""Tiers: sizes of cluster that job files ask for by name, read from the files of hpc_train, the site and the user."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpc_train.config.resources import CUSTOM, ResourceOptions, Resources, ResourcesSection, laid_over, resolve
from hpc_train.config.validation import said_of
from hpc_train.errors import UserError, did_you_mean
from hpc_train.jobs.site.sections import SiteFile, TierSection, TiersFile, read_sections
from hpc_train.jobs.site.site import site_file

BUILT_IN = Path(__file__).parents[1] / "launch" / "scripts" / "tiers.yaml"
TIERS_VARIABLE = "HPC_TRAIN_TIERS"


@dataclass(frozen=True)
class Tier:
    """One tier.

    Attributes:
        about: A line for people.
        file: Where it is defined.
        options: What it sets; `defaults:` of the same and later files are in it.
    """

    name: str
    about: str
    file: Path
    options: ResourceOptions


def tiers_files(env: Mapping[str, str], home: Path) -> list[Path]:
    """The files to read, in order; those that come later win.

    Raises:
        UserError: The file that $HPC_TRAIN_TIERS or $HPC_TRAIN_SITE names is not there, or a site file not trusted.
    """
    files = [BUILT_IN]
    if (site := site_file(env)) is not None:
        files.append(site)
    if more := env.get(TIERS_VARIABLE):
        files.append(Path(more))
        try:
            files[-1].stat()
        except OSError as error:
            problem = f"{TIERS_VARIABLE}: {more}: {error.strerror}"
            raise UserError(f"{problem}; set it to the tiers file of your site, or unset it") from None
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    own = (config if config.is_absolute() else home / ".config") / "hpc_train" / "tiers.yaml"
    return [*files, own] if os.access(own, os.F_OK) else files


def load_tiers(env: Mapping[str, str], home: Path) -> dict[str, Tier]:
    """All tiers by name: those built in, then the site's and the user's, which replace tiers of the same name.

    Raises:
        UserError: With every mistake of all files, each on a line of its own; or $HPC_TRAIN_TIERS is not there.
    """
    contents: list[tuple[Path, TiersFile]] = []
    problems = []
    site = site_file(env)
    for path in tiers_files(env, home):
        try:
            contents.append((path, read_sections(path, SiteFile if path == site else TiersFile)))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    tiers = {}
    for i, (path, content) in enumerate(contents):
        defaults: dict[str, Any] = {}
        for _, later in contents[i:]:
            defaults = laid_over(defaults, _given(later.defaults or ResourceOptions()))
        for name, section in (content.tiers or {}).items():
            tier = section or TierSection()
            # All parts are valid. A default that does not fit a tier is a matter of the jobs that use it, not of all.
            options = ResourceOptions().model_copy(update=laid_over(defaults, _given(tier)))
            tiers[name] = Tier(name, tier.about, path, options)
    return tiers


def _given(options: ResourceOptions) -> dict[str, Any]:
    return options.model_dump(include=set(ResourceOptions.model_fields), exclude_none=True)


def resources_for(section: ResourcesSection, tiers: Mapping[str, Tier]) -> Resources:
    """What a job with `section` gets, complete.

    Raises:
        UserError: There is no such tier, or the tier and the section do not fit together.
    """
    tier = tiers.get(section.tier)
    if tier is None:
        hint = did_you_mean(section.tier, tiers)
        raise UserError(f"resources.tier: there is no tier {section.tier!r}; {hint}allowed: {', '.join(tiers)}")
    try:
        return resolve(section, tier.options)
    except ValidationError as error:
        where = f"resources, with tier {tier.name} of {tier.file}"
        raise UserError("\n".join(f"{where}: {_in_words(dict(e))}" for e in error.errors())) from None


def _in_words(error: dict[str, Any]) -> str:
    text = said_of(error, ("resources", *error["loc"]), ResourcesSection)
    return f"{'.'.join(map(str, error['loc']))}: {text}" if error["loc"] else text


@dataclass(frozen=True)
class TierRow:
    """One tier as it is listed.

    Attributes:
        nodes, ranks, cores, memory, gpus: Nodes, ranks of a node, cores of a rank, memory ("16G") and GPUs of a node;
            None: what the job file or the partition gives.
        time: The time limit; None: the partition's.
        partition: None: the default one.
        problems: What this cluster or machine cannot give, each a sentence.
    """

    name: str
    nodes: int | None
    ranks: int | None
    cores: int | None
    memory: str | None
    gpus: int | None
    time: str | None
    partition: str | None
    about: str
    file: str
    problems: tuple[str, ...]


def describe_tiers(tiers: Mapping[str, Tier], limits: Callable[[Resources], list[str]]) -> list[TierRow]:
    """A row for each tier, with what cannot be given of it by `limits`. Pure."""
    return [_row(tier, tiers, limits) for tier in tiers.values()]


def _row(tier: Tier, tiers: Mapping[str, Tier], limits: Callable[[Resources], list[str]]) -> TierRow:
    shown: ResourceOptions = tier.options
    problems: list[str] = []
    if tier.name != CUSTOM:
        try:
            shown = resources_for(ResourcesSection(tier=tier.name), tiers)
            problems = limits(shown)
        except UserError as error:
            problems = str(error).splitlines()
    return TierRow(
        name=tier.name,
        nodes=shown.nodes,
        ranks=shown.ranks_per_node,
        cores=shown.cores_per_rank,
        memory=shown.memory,
        gpus=shown.gpus_per_node,
        time=shown.time,
        partition=shown.partition,
        about=tier.about,
        file=str(tier.file),
        problems=tuple(problems),
    )

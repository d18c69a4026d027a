"""Tiers: sizes of cluster that job files ask for by name, read from the files of hpc_train, the site and the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpc_train.config.diagnostics import PATTERNS, Mistake, explain, mistake_at, mistakes_of_yaml, refuse
from hpc_train.config.resources import (
    CUSTOM,
    TIER_PATTERN,
    ResourceOptions,
    Resources,
    ResourcesSection,
    laid_over,
    resolve,
)
from hpc_train.config.validation import said_of, unknown_key
from hpc_train.config.yaml_loader import Document, Location, read_yaml
from hpc_train.errors import UserError, did_you_mean
from hpc_train.jobs.schedulers.base import Limits

BUILT_IN = Path(__file__).parent / "launch" / "scripts" / "tiers.yaml"
SITE_VARIABLE = "HPC_TRAIN_TIERS"


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


class _TierSection(ResourceOptions):
    about: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")] = ""


class _TiersFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    defaults: ResourceOptions | None = None
    tiers: dict[Annotated[str, Field(pattern=TIER_PATTERN)], _TierSection | None] | None = None


def tiers_files(env: Mapping[str, str], home: Path) -> list[Path]:
    """The files to read, in order; those that come later win.

    Raises:
        UserError: The file that $HPC_TRAIN_TIERS names is not there.
    """
    files = [BUILT_IN]
    if site := env.get(SITE_VARIABLE):
        files.append(Path(site))
        try:
            files[-1].stat()
        except OSError as error:
            problem = f"{SITE_VARIABLE}: {site}: {error.strerror}"
            raise UserError(f"{problem}; set it to the tiers file of your site, or unset it") from None
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    own = (config if config.is_absolute() else home / ".config") / "hpc_train" / "tiers.yaml"
    return [*files, own] if os.access(own, os.F_OK) else files


def load_tiers(env: Mapping[str, str], home: Path) -> dict[str, Tier]:
    """All tiers by name: those built in, then the site's and the user's, which replace tiers of the same name.

    Raises:
        UserError: With every mistake of all files, each on a line of its own; or $HPC_TRAIN_TIERS is not there.
    """
    contents: list[tuple[Path, _TiersFile]] = []
    problems = []
    for path in tiers_files(env, home):
        try:
            contents.append((path, _read(path)))
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
            tier = section or _TierSection()
            # All parts are valid. A default that does not fit a tier is a matter of the jobs that use it, not of all.
            options = ResourceOptions().model_copy(update=laid_over(defaults, _given(tier)))
            tiers[name] = Tier(name, tier.about, path, options)
    return tiers


def _given(options: ResourceOptions) -> dict[str, Any]:
    return options.model_dump(include=set(ResourceOptions.model_fields), exclude_none=True)


def _read(path: Path) -> _TiersFile:
    document = read_yaml(path)
    if document.value is None:
        return _TiersFile()
    if not isinstance(document.value, dict):
        raise UserError(f"{path}:1: a tiers file is a mapping with the keys {', '.join(_TiersFile.model_fields)}")
    problems = mistakes_of_yaml(document)
    content = None
    try:
        content = _TiersFile.model_validate(document.value)
    except ValidationError as error:
        problems += [_explain(document, dict(e)) for e in error.errors()]
    tiers = document.value.get("tiers")
    custom = tiers.get(CUSTOM) if isinstance(tiers, dict) else None
    for key in custom if isinstance(custom, dict) else ():
        if key in ResourceOptions.model_fields:
            text = f"tiers.{CUSTOM}.{key}: {CUSTOM} sets nothing, job files do; give the tier another name"
            problems.append(mistake_at(document, ("tiers", CUSTOM, key), text))
    if problems or content is None:
        refuse(path, problems)
    return content


def _explain(document: Document, error: dict[str, Any]) -> Mistake:
    location: Location = tuple(error["loc"])
    section = location[1:] if location[0] == "defaults" else location[2:]
    key = [part for part in section if isinstance(part, str)]  # without the number of an item
    if error["type"] == "extra_forbidden" and location[0] == "tiers":
        text = f"{'.'.join(map(str, location))}: {unknown_key(str(location[-1]), _TierSection.model_fields)}"
        return mistake_at(document, location, text)
    if key == ["[key]"]:
        return explain(document, error, _TiersFile, {location[:-1]: PATTERNS["resources", "tier"]})
    words = "text of one line, 200 characters at most" if key == ["about"] else PATTERNS.get(("resources", *key), "")
    return explain(document, error, _TiersFile, {location: words})


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


def describe_tiers(tiers: Mapping[str, Tier], limits: Limits) -> list[TierRow]:
    """A row for each tier, with what cannot be given of it by `limits`. Pure."""
    return [_row(tier, tiers, limits) for tier in tiers.values()]


def _row(tier: Tier, tiers: Mapping[str, Tier], limits: Limits) -> TierRow:
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

"""Tiers files and site files as they are written: their keys, and the mistakes in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hpc_train.config.diagnostics import PATTERNS, Mistake, explain, mistake_at, mistakes_of_yaml, refuse
from hpc_train.config.resources import CUSTOM, TIER_PATTERN, ResourceOptions, values_of_variables
from hpc_train.config.validation import unknown_key
from hpc_train.config.yaml_loader import Document, Location, read_yaml
from hpc_train.errors import UserError

MPI_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "UCX_", "FI_", "PSM2_", "MPICH_", "I_MPI_", "NCCL_", "HOROVOD_")
"""Beginnings of the variables that set up an MPI or NCCL and their network."""
LONGEST_VALUE = 2048
_VARIABLE = re.compile(r"[A-Z][A-Za-z0-9_]*")
_FIELD = re.compile(r"\{[^}]*\}?|\}")


class TierSection(ResourceOptions):
    """One tier of a file."""

    about: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")] = ""


class TiersFile(BaseModel):
    """A tiers file."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="a tiers file")

    defaults: ResourceOptions | None = None
    tiers: dict[Annotated[str, Field(pattern=TIER_PATTERN)], TierSection | None] | None = None


class SiteFile(TiersFile):
    """A site file: a tiers file with what concerns the site beside tiers. See docs/sites.md."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="a site file")

    root: str | None = None
    scratch: str | None = None
    mpi: dict[str, str] | None = None

    @field_validator("root", "scratch")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith("/") or re.search(r"[\0-\x1f\x7f]", value)):
            raise ValueError(f"{value!r} is not allowed; allowed: a path from the root, in one line")
        if unknown := [word for word in _FIELD.findall(value or "") if word != "{user}"]:
            raise ValueError(f"{unknown[0]!r} is not allowed; allowed: {{user}}, which is the user's name")
        return value

    @field_validator("mpi", mode="before")
    @classmethod
    def _variables(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name, value in values.items():
            if not (_VARIABLE.fullmatch(str(name)) and str(name).startswith(MPI_PREFIXES)):
                begins = ", ".join(MPI_PREFIXES)
                raise ValueError(
                    f"{name!r} is no variable of an MPI; allowed: names that begin with {begins}; others belong to "
                    "`defaults: {environment: …}`"
                )
            if len(str(value)) > LONGEST_VALUE:
                raise ValueError(f"{name}: its value is not allowed; allowed: {LONGEST_VALUE:,} characters at most")
        return values_of_variables(values)


Kind = TypeVar("Kind", bound=TiersFile)


def read_sections(path: Path, kind: type[Kind]) -> Kind:
    """What the file `path` has.

    Raises:
        UserError: With all of its mistakes, each with its line; or it cannot be read.
    """
    document = read_yaml(path)
    if document.value is None:
        return kind()
    if not isinstance(document.value, dict):
        raise UserError(f"{path}:1: {_title(kind)} is a mapping with the keys {', '.join(kind.model_fields)}")
    problems = mistakes_of_yaml(document)
    content = None
    try:
        content = kind.model_validate(document.value)
    except ValidationError as error:
        problems += [_explain(document, dict(e), kind) for e in error.errors()]
    tiers = document.value.get("tiers")
    custom = tiers.get(CUSTOM) if isinstance(tiers, dict) else None
    for key in custom if isinstance(custom, dict) else ():
        if key in ResourceOptions.model_fields:
            text = f"tiers.{CUSTOM}.{key}: {CUSTOM} sets nothing, job files do; give the tier another name"
            problems.append(mistake_at(document, ("tiers", CUSTOM, key), text))
    if problems or content is None:
        refuse(path, problems)
    return content


def _title(kind: type[BaseModel]) -> str:
    return str(kind.model_config.get("title"))


def _explain(document: Document, error: dict[str, Any], kind: type[TiersFile]) -> Mistake:
    location: Location = tuple(error["loc"])
    section = location[2:] if location[0] == "tiers" else location[1:] if location[0] == "defaults" else ()
    key = [part for part in section if isinstance(part, str)]  # without the number of an item
    if error["type"] == "extra_forbidden" and location[0] == "tiers":
        text = f"{'.'.join(map(str, location))}: {unknown_key(str(location[-1]), TierSection.model_fields)}"
        return mistake_at(document, location, text)
    if key == ["[key]"]:
        return explain(document, error, kind, {location[:-1]: PATTERNS["resources", "tier"]})
    words = "text of one line, 200 characters at most" if key == ["about"] else PATTERNS.get(("resources", *key), "")
    return explain(document, error, kind, {location: words})

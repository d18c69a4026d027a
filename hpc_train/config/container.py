"""The container that a job's ranks run in: `resources.container`. Frozen, validated where it is made."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

_UNFIT = re.compile(r"[\0-\x1f\x7f\\:,'\"]")
ALLOWED = "of one line, without : , quotes and backslashes, which no container's runtime takes in paths"


def check_path(path: str) -> str:
    """`path`, which a container's runtime can be told. Pure.

    Raises:
        ValueError: It cannot, or is none.
    """
    if not path.strip() or len(path) > 4096 or _UNFIT.search(path):
        raise ValueError(f"{path!r} is not allowed; allowed: a path {ALLOWED}")
    return path


def _bind(text: str) -> str:
    parts = text.split(":")
    if len(parts) > 2 or any(not part.startswith("/") for part in parts):
        raise ValueError(
            f"{text!r} is not allowed; allowed: /folder, or /folder:/in/the/container, with absolute paths {ALLOWED}"
        )
    for part in parts:
        check_path(part)
    return text


class Container(BaseModel):
    """An image, and how it is run.

    Attributes:
        image: A folder (Charliecloud), or a .sif file (Apptainer).
        runtime: What runs it; auto: by the image.
        binds: Folders of the node that are seen in it, beside those that the job is known to need: "/folder", or
            "/folder:/in/the/container".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: Annotated[str, AfterValidator(check_path)]
    runtime: Literal["auto", "charliecloud", "apptainer"] = "auto"
    binds: tuple[Annotated[str, AfterValidator(_bind)], ...] = ()


def _from_text(value: Any) -> Any:
    return {"image": value} if isinstance(value, str) else value


ContainerKey = Annotated[Container | None, BeforeValidator(_from_text)]
"""As job files have it: the path of an image, or a mapping."""

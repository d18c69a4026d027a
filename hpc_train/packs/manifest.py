"""manifest.json of a pack, its first member: what is in it, and where it can be used."""

from __future__ import annotations

import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from hpc_train.errors import UserError
from hpc_train.files import open_to_read
from hpc_train.telemetry.json_files import parsed

NAME = "manifest.json"
FORMAT = 1
MAX_BYTES = 1 << 16

Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+_-]{1,64}$")]


@dataclass(frozen=True)
class Manifest:
    """What a pack says of itself.

    Attributes:
        format: Of packs; FORMAT.
        hpc_train, python, mpi: Versions of what is in it; mpi None: the nodes have their own.
        machine, libc: The nodes are to be such machines, with this C library or a newer one.
        prefix: Where the environment lay.
        files, bytes: What is unpacked.
        contents: SHA-256 of names, sizes and times of all members but what Python compiles.
        code: The fingerprint of the hpc_train in it.
    """

    format: Annotated[int, Field(strict=True)]
    hpc_train: Version
    python: Version
    machine: Version
    libc: Annotated[str, Field(pattern=r"^([0-9.]{1,16})?$")]
    mpi: Annotated[str, Field(max_length=100)] | None
    prefix: Annotated[str, Field(max_length=4096)]
    files: Annotated[int, Field(ge=0, strict=True)]
    bytes: Annotated[int, Field(ge=0, strict=True)]
    contents: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    code: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]

    def to_json(self) -> dict[str, Any]:
        """As `read_manifest` reads it."""
        return asdict(self)


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(path: Path) -> Manifest:
    """The manifest of the pack `path`.

    Raises:
        UserError: It cannot be read, or is no pack.
    """
    found = None
    try:
        with open_to_read(path, follow=True) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            first = tar.next()
            if first is not None and first.name == NAME and first.isreg() and first.size <= MAX_BYTES:
                content = tar.extractfile(first)
                found = parsed(content.read() if content is not None else b"")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tarfile.TarError, ValueError):
        raise UserError(f"{path}: is no pack, or a damaged one; make one with hpc-train pack") from None
    if found is None:
        raise UserError(f"{path}: is no pack: it does not begin with {NAME}; make one with hpc-train pack")
    try:
        manifest = _MANIFEST.validate_python(found)
    except ValidationError as error:
        names = ", ".join(str(problem["loc"][0]) if problem["loc"] else "all of it" for problem in error.errors())
        raise UserError(f"{path}: its {NAME} is not as hpc-train pack writes it ({names[:80]})") from None
    if manifest.format != FORMAT:
        raise UserError(
            f"{path}: is a pack of format {manifest.format}, and this hpc_train reads {FORMAT}: make it again"
        )
    return manifest

"""Which folder a job-dir is: a copy of one is not its job, one that was renamed or moved is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from hpc_train.processes import identity

Number = Annotated[int, Field(ge=0, lt=1 << 64, strict=True)]
Name = Annotated[str, Field(max_length=255)]


@dataclass(frozen=True)
class FolderIdentity:
    """A folder's numbers in its file system.

    Attributes:
        device, inode: As stat gives them.
        host, boot_id: Of the machine that saw them, which numbers devices of its own; see processes.identity.
    """

    device: Number
    inode: Number
    host: Name
    boot_id: Name | None

    @classmethod
    def of(cls, folder: Path) -> FolderIdentity:
        """That of `folder`; OSError where it cannot be looked at."""
        status, here = folder.stat(), identity()
        return cls(status.st_dev, status.st_ino, here["host"], here["boot_id"])

    def is_of(self, folder: Path) -> bool:
        """Whether it is that of `folder`.

        The device counts where it is a disk that this machine has seen since its start: network file systems and their
        like (major number 0) get another number with each mount, and other machines have numbers of their own.
        """
        other = FolderIdentity.of(folder)
        same_start = (self.host, self.boot_id) == (other.host, other.boot_id)
        comparable = same_start and all(os.major(each.device) for each in (self, other))
        return self.inode == other.inode and (not comparable or self.device == other.device)


_ADAPTER = TypeAdapter(FolderIdentity)


def identity_in(record: Mapping[str, Any]) -> FolderIdentity | None:
    """The identity under `folder` in a record; None where it has none."""
    try:
        return _ADAPTER.validate_python(record.get("folder"))
    except ValidationError:
        return None

"""What a container's runtime is to the rest of hpc_train."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpc_train.errors import UserError

HOST_ONLY = (
    *("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV"),
    # Of the node's MPI: mpirun tells ranks where it lies, and where its helpers keep files.
    *("OPAL_PREFIX", "PMIX_INSTALL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX", "OMPI_MCA_orte_remote_tmpdir_base"),
)
"""Variables that mean something on the node alone: no container has them, unless the job itself sets them."""


def way_to(path: str) -> list[str]:
    """The folders on the way to `path`, and itself: /a, /a/b, /a/b/c. Pure."""
    return [str(folder) for folder in [*reversed(Path(path).parents), Path(path)][1:]]


class Look(Protocol):
    """What can be asked of an image, in which nothing of the job's is mounted."""

    def kinds(self, paths: Sequence[str]) -> list[str]:
        """What is at each path: a "file", an "empty" or a "full" folder, or "none"."""

    def text(self, path: str) -> str:
        """What a file holds."""


@dataclass(frozen=True)
class Inside:
    """What a container is like for a job.

    Attributes:
        folder: Where commands begin; the runtime is started there.
        binds: "/folder" or "/folder:/in/the/container", in the order in which they are mounted.
        variables: Set in it, whatever the node and the image say.
        winning: Names of variables of the job that win over those of the image.
        unset: Not set in it by the node.
        gpus: Whether it has the node's GPUs.
    """

    folder: str = "/"
    binds: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    winning: tuple[str, ...] = ()
    unset: tuple[str, ...] = HOST_ONLY
    gpus: bool = False


class Runtime(ABC):
    """Runs images.

    Attributes:
        name: In job files, and for users.
        programs: Its names on PATH; the first that is there.
        makes_folders: Whether it mounts also where an image has no folder.
    """

    name: str
    programs: tuple[str, ...]
    makes_folders: bool

    @abstractmethod
    def takes(self, image: Path) -> bool:
        """Whether `image`, which is there, looks like one for it."""

    @abstractmethod
    def check(self, image: Path) -> None:
        """UserError where ranks cannot be run in `image`, whatever is in it."""

    @abstractmethod
    def words(self, program: str, image: str, inside: Inside) -> list[str]:
        """The command before the one that is to run in the container."""

    @abstractmethod
    def fitted(
        self, inside: Inside, needed: Sequence[str], wanted: Sequence[str], look: Look, env: Mapping[str, str]
    ) -> Inside:
        """`inside` with what an image takes so that paths are seen in it, as far as they can be.

        Args:
            needed: Paths that hide what the image has there. wanted: those that do not.
            env: Of the job.
        """

    def program(self) -> str:
        """The full path of its program.

        Raises:
            UserError: It is not on PATH.
        """
        for name in self.programs:
            if (found := shutil.which(name)) is not None:
                return found
        raise UserError(
            f"container: {self.name} is not on PATH here ({' or '.join(self.programs)}): load its module (`modules`), "
            "or take another `runtime`"
        )

"""What a container's runtime is to the rest of hpc_train."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.errors import UserError

HOST_ONLY = (
    *("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV"),
    # Of the node's MPI: mpirun tells ranks where it lies, and where its helpers keep files.
    *("OPAL_PREFIX", "PMIX_INSTALL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX", "OMPI_MCA_orte_remote_tmpdir_base"),
)
"""Variables that mean something on the node alone: no container has them, unless the job itself sets them."""
Look = Callable[[Sequence[str]], list[str]]
"""What is at paths in an image, without anything of the job's: a "file", an "empty" or "full" folder, or "none"."""


@dataclass(frozen=True)
class Inside:
    """What a container is like for a job.

    Attributes:
        folder: Where commands begin; the runtime is started there.
        binds: "/folder" or "/folder:/in/the/container", in the order in which they are mounted.
        variables: Set in it.
        unset: Not set in it.
        has_environment: Whether the image has variables of its own in a file.
        gpus: Whether it has the node's GPUs.
    """

    folder: str = "/"
    binds: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = HOST_ONLY
    has_environment: bool = False
    gpus: bool = False


class Runtime(ABC):
    """Runs images.

    Attributes:
        name: In job files, and for users.
        programs: Its names on PATH; the first that is there.
    """

    name: str
    programs: tuple[str, ...]

    @abstractmethod
    def takes(self, image: Path) -> bool:
        """Whether `image`, which is there, looks like one for it."""

    @abstractmethod
    def words(self, program: str, image: str, inside: Inside) -> list[str]:
        """The command before the one that is to run in the container."""

    @abstractmethod
    def fitted(self, inside: Inside, paths: Sequence[str], look: Look) -> tuple[Inside, list[str]]:
        """`inside` with what an image needs so that `paths` are seen in it; and those that cannot be."""

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

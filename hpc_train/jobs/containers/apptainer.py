"""Apptainer, and Singularity, whose options are the same: .sif files and folders (`apptainer exec`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc_train.jobs.containers.base import Inside, Look, Runtime

_ITS_OWN = ("PATH", "LD_LIBRARY_PATH")
"""Variables that it sets in a container, whatever they are outside; for others to win they need its prefix."""


class Apptainer(Runtime):
    """It makes the folders that it mounts on, and commands begin where it is started."""

    name, programs = "apptainer", ("apptainer", "singularity")

    def takes(self, image: Path) -> bool:
        return image.suffix in (".sif", ".simg")

    def words(self, program: str, image: str, inside: Inside) -> list[str]:
        prefix = f"{Path(program).name.upper()}ENV_"
        return [
            "env",
            *(word for name in inside.unset for word in ("-u", name)),
            *(f"{prefix if name in _ITS_OWN else ''}{name}={value}" for name, value in inside.variables.items()),
            program,
            "exec",
            *(["--nv"] if inside.gpus else []),
            *(f"--bind={bind}" for bind in inside.binds),
            image,
        ]

    def fitted(self, inside: Inside, paths: Sequence[str], look: Look) -> tuple[Inside, list[str]]:
        within = {path for path in paths for other in paths if path != other and Path(path).is_relative_to(other)}
        return replace(inside, binds=(*inside.binds, *(path for path in paths if path not in within))), []

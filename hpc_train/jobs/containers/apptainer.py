"""Apptainer, and Singularity, whose options are the same: .sif files and folders (`apptainer exec`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_train.jobs.containers.base import Inside, Look, Runtime

_ITS_OWN = ("PATH", "LD_LIBRARY_PATH")
"""Variables that it sets in a container, whatever they are outside; for others to win they need its prefix."""
_WINNING = """\
prefix=$1
for name in $2; do
    eval "[ -z \\"\\${$name+x}\\" ] || export $prefix$name=\\"\\$$name\\""
done
shift 2
exec "$@"
"""
"""For sh: has variables win over the image's, whose values are in the environment alone."""


class Apptainer(Runtime):
    """It makes the folders that it mounts on, and commands begin where it is started."""

    name, programs, makes_folders = "apptainer", ("apptainer", "singularity"), True

    def takes(self, image: Path) -> bool:
        return image.suffix in (".sif", ".simg")

    def check(self, image: Path) -> None:
        pass

    def words(self, program: str, image: str, inside: Inside) -> list[str]:
        prefix = f"{Path(program).name.upper()}ENV_"
        return [
            "env",
            *(word for name in inside.unset for word in ("-u", name)),
            *(f"{prefix if name in _ITS_OWN else ''}{name}={value}" for name, value in inside.variables.items()),
            *(["sh", "-c", _WINNING, "-", prefix, " ".join(inside.winning)] if inside.winning else []),
            program,
            "exec",
            *(["--nv"] if inside.gpus else []),
            *(f"--bind={bind}" for bind in inside.binds),
            image,
        ]

    def fitted(
        self, inside: Inside, needed: Sequence[str], wanted: Sequence[str], look: Look, env: Mapping[str, str]
    ) -> Inside:
        kinds = look.kinds(wanted) if wanted else []
        paths = [*needed, *(path for path, kind in zip(wanted, kinds, strict=True) if kind in ("none", "empty"))]
        known = set(paths)
        outermost = [path for path in dict.fromkeys(paths) if not any(str(one) in known for one in Path(path).parents)]
        return replace(inside, binds=(*inside.binds, *outermost))

"""Charliecloud: folders and SquashFS files, run without privileges (ch-run(1))."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc_train.jobs.containers.base import Inside, Look, Runtime
from hpc_train.processes import user_name

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of an image that says nothing of it: the node's has nothing to do with it."""
ENVIRONMENT = "/ch/environment"
"""In an image: the variables of its recipe."""


class Charliecloud(Runtime):
    """Images are read-only: the node's folders are mounted on those that an image has already, and has empty."""

    name, programs = "charliecloud", ("ch-run",)

    def takes(self, image: Path) -> bool:
        return image.suffix == ".sqfs" or image.is_dir()

    def words(self, program: str, image: str, inside: Inside) -> list[str]:
        return [
            "env",
            f"USER={user_name()}",  # it ends without, and a queue may set none
            "TMPDIR=/tmp",  # the node's folder that is /tmp in the container
            program,
            *(f"--unset-env={name}" for name in inside.unset),
            f"--set-env=PATH={PATH}",
            *(["--set-env"] if inside.has_environment else []),
            "--env-no-expand",
            *(f"--set-env={name}={value}" for name, value in inside.variables.items()),
            *(f"--bind={bind}" for bind in inside.binds),
            f"--cd={inside.folder}",
            image,
            "--",
        ]

    def fitted(self, inside: Inside, paths: Sequence[str], look: Look) -> tuple[Inside, list[str]]:
        ways = {path: _from_the_root(path) for path in paths}
        asked = list(dict.fromkeys([ENVIRONMENT, *(folder for way in ways.values() for folder in way)]))
        there = dict(zip(asked, look(asked), strict=True))
        binds: list[str] = []
        missing = []
        for path, way in ways.items():
            place = next((folder for folder in way if there[folder] != "full"), "")
            if there.get(place) == "empty":
                binds.append(place)
            else:
                missing.append(path)
        return replace(
            inside, binds=(*inside.binds, *dict.fromkeys(binds)), has_environment=there[ENVIRONMENT] == "file"
        ), missing


def _from_the_root(path: str) -> list[str]:
    """The folders on the way to `path`, and itself: /a, /a/b, /a/b/c."""
    return [str(folder) for folder in [*reversed(Path(path).parents), Path(path)][1:]]

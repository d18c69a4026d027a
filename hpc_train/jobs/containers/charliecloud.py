"""Charliecloud: folders that are run without privileges (ch-run(1))."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.jobs.containers.base import HOST_ONLY, Inside, Look, Runtime, way_to
from hpc_train.processes import user_name

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of an image that says nothing of it: the node's has nothing to do with it."""
ENVIRONMENT = "/ch/environment"
"""In an image: the variables of its recipe."""
SQUASHED = ".sqfs"
_LINE = re.compile(r"^([A-Za-z_]\w*)=([^\0-\x1f\x7f]*)$", re.MULTILINE)


class Charliecloud(Runtime):
    """Images are read-only: the node's folders are mounted on those that an image has already, and has empty."""

    name, programs, makes_folders = "charliecloud", ("ch-run",), False

    def takes(self, image: Path) -> bool:
        return image.suffix == SQUASHED or image.is_dir()

    def check(self, image: Path) -> None:
        if not image.is_dir():  # there ch-run stays, and ends at the signal by which ranks are asked to save
            raise UserError(
                f"container: {image}: is no folder, and of a packed image ch-run would keep the signals that ask ranks "
                f"to save: unpack it, as by ch-convert {image} FOLDER"
            )

    def words(self, program: str, image: str, inside: Inside) -> list[str]:
        return [
            "env",
            f"USER={user_name()}",  # it ends without, and a queue may set none
            "TMPDIR=/tmp",  # the node's folder that is /tmp in the container
            program,
            *(f"--unset-env={name}" for name in inside.unset),
            "--env-no-expand",
            *(f"--set-env={name}={value}" for name, value in {"PATH": PATH, **inside.variables}.items()),
            *(f"--bind={bind}" for bind in inside.binds),
            f"--cd={inside.folder}",
            image,
            "--",
        ]

    def fitted(
        self, inside: Inside, needed: Sequence[str], wanted: Sequence[str], look: Look, env: Mapping[str, str]
    ) -> Inside:
        ways = [way_to(path) for path in (*needed, *wanted)]
        asked = list(dict.fromkeys([ENVIRONMENT, *(folder for way in ways for folder in way)]))
        there = dict(zip(asked, look.kinds(asked), strict=True))
        places = (next((folder for folder in way if there[folder] != "full"), "") for way in ways)
        binds = dict.fromkeys(place for place in places if there.get(place) == "empty")
        own = _LINE.findall(look.text(ENVIRONMENT)) if there[ENVIRONMENT] == "file" else []
        of_image = {name: value for name, value in own if name not in env or name in (*HOST_ONLY, "PATH")}
        return replace(inside, binds=(*inside.binds, *binds), variables={**of_image, **inside.variables})

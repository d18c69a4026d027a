"""An image for Charliecloud: this machine's own programs, Python and packages, hard links of them, and hpc_train."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support import LIMIT_SECS, REPOSITORY

EMPTY = ("dev", "proc", "sys", "tmp", "etc", "ch", "usr", "scratch", "var/tmp")
SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib64")
VENV = Path("/opt/hpc_train/.venv")
"""In the image, where there is nothing of the node's: what points there is so found."""
PACKAGES = VENV / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


def make_image(folder: Path) -> Path:
    """A new image in `folder`, of hard links where that is on the same file system. Nothing in it may be changed."""
    for name in EMPTY:
        (folder / name).mkdir(parents=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    shutil.copy("/etc/ld.so.cache", folder / "etc")
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (folder / name).symlink_to(os.readlink(f"/{name}"))
    places = {path: path for path in (*map(Path, SYSTEM), Path(sys.base_prefix))} | {Path(sys.prefix): VENV}
    for source, place in places.items():
        if source.is_dir():
            target = folder / place.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                linked = subprocess.run(["cp", "-al", source, target], capture_output=True, timeout=LIMIT_SECS)
                if linked.returncode:  # on another file system
                    shutil.rmtree(target, ignore_errors=True)
                    subprocess.run(["cp", "-a", source, target], check=True, timeout=LIMIT_SECS)
    packages = folder / PACKAGES.relative_to("/")
    for editable in packages.glob("__editable__*hpc_train*"):
        editable.unlink()
    shutil.copytree(REPOSITORY / "hpc_train", packages / "hpc_train", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "ch/environment").write_text(f"PATH={VENV}/bin:/usr/bin:/bin\n")
    return folder

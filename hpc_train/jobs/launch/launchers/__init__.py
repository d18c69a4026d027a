"""The launchers there are. A new one takes a module with a Launcher (base.py), and a line below."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from hpc_train.errors import UserError

if TYPE_CHECKING:
    from hpc_train.jobs.launch.launchers.base import Launcher

LAUNCHERS = {
    "mpirun": "hpc_train.jobs.launch.launchers.mpirun:Mpirun",
    "srun": "hpc_train.jobs.launch.launchers.srun:Srun",
}
"""By the names for `--launcher`."""


def launcher(name: str) -> Launcher:
    """The launcher of this name.

    Raises:
        UserError: There is no such launcher, or it cannot be used here.
    """
    if name not in LAUNCHERS:
        raise UserError(f"--launcher: {name!r} is not allowed; allowed: {', '.join(LAUNCHERS)}")
    found: Launcher = resolve_name(LAUNCHERS[name])()
    return found

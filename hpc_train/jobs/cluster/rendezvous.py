"""Where the ranks of a cluster tell one another their addresses: a folder of the job-dir, new for each run.

By files, since a program may bring an MPI of its own, or none: MPI cannot be started twice in a rank.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.files import create, read_bytes, replace_text
from hpc_train.folders import make_folder, remove_tree
from hpc_train.text import listed, visible

FOLDER = "cluster"
"""In the job-dir."""
PORTS = range(20_000, 32_768)
"""Below those that Linux gives to connections by itself, so that none takes a port between its choice and its use."""
POLL_SECS = 0.2
WAIT_SECS = 300.0
"""How long ranks wait for one another; on a busy node, and with a cold file system, Python takes a minute to start."""
_MAX_BYTES = 4096
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
_DONE = "done"


class Rendezvous:
    """The meeting of `size` ranks of one run of a job. Local, but for what `addresses` waits for.

    Args:
        run: Known to all ranks of this run, and to no other run.

    Writes:
        `cluster/RUN/rank-K.json` in the job-dir, and `done`.
    """

    def __init__(self, job_dir: Path, run: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._all = job_dir / FOLDER
        self._folder = self._all / sha256(run.encode()).hexdigest()[:16]

    def open(self) -> socket.socket:
        """Makes the folder, and has a port, which is held until the socket is closed; tells the others.

        Raises:
            UserError: No port is free, or the job-dir cannot be written.
        """
        listener = _listener()
        port = listener.getsockname()[1]
        try:
            make_folder(self._folder, 0o700)
            if self.rank == 0:
                self._remove_others()
            told = {"host": socket.gethostname(), "port": port}
            replace_text(self._folder / f"rank-{self.rank}.json", json.dumps(told), to_disk=False)
        except OSError as error:
            listener.close()
            raise UserError(f"{error.filename or self._folder}: cannot be written: {error.strerror}") from None
        return listener

    def _remove_others(self) -> None:
        for path in self._all.iterdir():
            if path != self._folder:
                with suppress(OSError):
                    remove_tree(path)

    def addresses(self, wait_secs: float = WAIT_SECS, is_over: Callable[[], bool] = lambda: False) -> list[str]:
        """Each rank's "host:port", by rank, once all are there; "localhost:port" where they are on one host.

        Raises:
            UserError: Some have not come within `wait_secs` seconds, or have written something else; or it `is_over`.
        """
        deadline = time.monotonic() + wait_secs
        found: dict[int, tuple[str, int]] = {}
        while len(found) < self.size:
            # A listing asks the file server anew, while a file that was not there may be "not there" for seconds.
            try:
                names = {path.name for path in self._folder.iterdir()}
            except OSError as error:
                raise UserError(f"{self._folder}: cannot be read: {error.strerror}") from None
            for rank in range(self.size):
                if rank not in found and f"rank-{rank}.json" in names:
                    found[rank] = _address_in(self._folder / f"rank-{rank}.json")
            if len(found) < self.size and (time.monotonic() > deadline or is_over()):
                missing = [str(rank) for rank in range(self.size) if rank not in found]
                raise UserError(
                    f"cluster: rank {listed(missing)} of {self.size} has not told its address within {wait_secs:.0f} s "
                    f"in {self._folder}; all nodes have to see the job-dir"
                )
            time.sleep(0 if len(found) == self.size else POLL_SECS)
        hosts = {host for host, _ in found.values()}
        return [f"{found[rank][0] if len(hosts) > 1 else 'localhost'}:{found[rank][1]}" for rank in range(self.size)]

    def end(self) -> None:
        """The chief's program has ended well, and with it the cluster."""
        try:
            os.close(create(self._folder / _DONE))
        except FileExistsError:
            pass
        except OSError as error:
            raise UserError(
                f"{error.filename}: cannot be written: {error.strerror}; the others are not ended"
            ) from None

    @property
    def has_ended(self) -> bool:
        """Whether the chief's has."""
        with suppress(OSError):
            return any(path.name == _DONE for path in self._folder.iterdir())
        return False


def _listener() -> socket.socket:
    for port in random.SystemRandom().sample(PORTS, 100):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("", port))
            return listener
        except OSError:
            listener.close()
    raise UserError(f"cluster: no port from {PORTS[0]} to {PORTS[-1]} is free on {socket.gethostname()}")


def _address_in(path: Path) -> tuple[str, int]:
    try:
        found: Any = json.loads(read_bytes(path, _MAX_BYTES))
        host, port = found["host"], found["port"]
        if not (_HOST.fullmatch(host) and isinstance(port, int) and 0 < port < 1 << 16):
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"{visible(str(path))}: is not as a rank of the cluster writes it") from None
    return host, port

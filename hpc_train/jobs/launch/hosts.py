"""The hosts that `hpc-train launch --hosts` names, with the ranks of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hpc_train.errors import UserError

MOST_HOSTS, MOST_SLOTS = 10_000, 10_000
ALLOWED = "allowed: HOST:RANKS,…, as in n1:2,n2:2; a host without a number has one rank"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?", re.ASCII)
"""Of a host, or its address of version 4. None begins with a dash: ssh and mpirun would read it as an option."""
_SLOTS = re.compile("[1-9][0-9]{0,4}", re.ASCII)


@dataclass(frozen=True)
class Host:
    """A host, and how many ranks it has."""

    name: str
    slots: int = 1


def parse_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of a text such as "n1:2,n2:2".

    Raises:
        UserError: It is no such list, or names a host twice.
    """
    found: dict[str, Host] = {}
    for part in text.split(","):
        name, colon, slots = part.strip().partition(":")
        if not _NAME.fullmatch(name) or (colon and (not _SLOTS.fullmatch(slots) or int(slots) > MOST_SLOTS)):
            raise UserError(f"--hosts: {part!r} is not allowed; {ALLOWED}")
        if name in found:
            raise UserError(f"--hosts: {name} is there twice; give it once, with all its ranks, as in {name}:2")
        found[name] = Host(name, int(slots) if slots else 1)
    if len(found) > MOST_HOSTS:
        raise UserError(f"--hosts: {len(found)} hosts; allowed: {MOST_HOSTS} at most")
    return tuple(found.values())


def ranks_on(hosts: Sequence[Host]) -> int:
    """How many ranks they have together."""
    return sum(host.slots for host in hosts)


def host_list(hosts: Sequence[Host]) -> str:
    """The text that parse_hosts reads, as mpirun's `--host` takes it."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)

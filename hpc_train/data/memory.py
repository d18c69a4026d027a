"""How much memory this process may still take."""

from __future__ import annotations

import re
import resource
from pathlib import Path

_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


SMALL_BYTES = 64 << 20
"""What is not held against the memory that is free."""
PIECES = 16
"""Of a larger piece, such as a chunk or a row, so many have to fit into it."""


def control_groups(proc: Path = Path("/proc")) -> list[str]:
    """Those that may limit this process's memory, as folders relative to /sys/fs/cgroup."""
    found = []
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root = "memory" if controllers else ""
            found.append(str(Path(root) / path.lstrip("/")))
    return found


def available_bytes(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup"), local_ranks: int = 1, in_group: int = 1
) -> int:
    """What the node has left, or what a limit of this job leaves where that is less, in bytes.

    Slurm limits jobs by control groups; `ulimit -v` limits a process's addresses.

    Args:
        local_ranks: Where a rank's share is asked for: how many share the node, and groups around their own.
        in_group: How many of them are in this one's own group.
    """
    match = re.search(r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    left = [(int(match[1]) << 10) // local_ranks] if match else []
    for name in control_groups(proc):
        folder = cgroups / name
        top = cgroups / "memory" if name.partition("/")[0] == "memory" else cgroups
        for group in (folder, *folder.parents):
            if not group.is_relative_to(top):
                break
            sharing = in_group if group == folder else local_ranks
            left += [room // sharing for names in _LIMITS if (room := _room(group, *names)) is not None]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left.append(limit - int(_text(proc / "self" / "statm").partition(" ")[0] or 0) * resource.getpagesize())
    return max(0, min(left, default=1 << 40))


def fits(size: int) -> bool:
    """Whether one piece of data of `size` bytes can be held, of which several are at the same time."""
    return size <= SMALL_BYTES or size <= available_bytes() // PIECES


def _room(group: Path, limit: str, usage: str) -> int | None:
    texts = [_text(group / name).strip() for name in (limit, usage)]
    if not all(text.isdigit() for text in texts):
        return None  # "max": no limit; "": there is no such file
    cache = re.search(r"^(?:total_)?inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
    return int(texts[0]) - int(texts[1]) + (int(cache[1]) if cache else 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

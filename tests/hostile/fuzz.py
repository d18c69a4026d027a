"""What random tests of hostile files share: odd JSON, changed bytes, limits, and how many cases were tried."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.hostile.commands import ADDRESS_BYTES, MAX_MIB, MAX_SECS, contents_of
from tests.support import LIMIT_SECS

tried: dict[str, int] = {}
"""Cases, by the name of the test."""


def count(name: str, cases: int = 1) -> None:
    """Notes that so many cases were tried."""
    tried[name] = tried.get(name, 0) + cases


NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([0, 1, -1, 7, 255, 256, 1 << 31, 1 << 60, 1 << 62, 1 << 64, 10**15, 10**30, 10**308, 10**400]),
    st.sampled_from([0.5, -0.0, 1e-320, 1e11, 9.9e10, 1e18, 1e300, 1e308, -1e308]),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    st.integers(),
    st.floats(),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", "\0", "7", "-1", "\u0667", "nan", "9" * 400, "x" * 5000, "\ud800", "a\udfffb", "\x1b[2J", "a\nb"]
    ),
    st.sampled_from(["~", "~x/y", "/etc/passwd", "../outside/victim.json", "-x", "--all", "***", "x" * 255, "\u202e"]),
    st.sampled_from(["kind", "step", "time", "loss", "eval", "running", "failed", "local", "slurm", "model", "tier"]),
    st.text(st.characters(exclude_categories=()), max_size=12),
)
NESTED = st.tuples(st.sampled_from("[{"), st.sampled_from([30, 90, 110, 240, 480, 980, 1500, 3000])).map(
    lambda how: f"@nested{how[0]}{how[1]}@"
)
"""What `text_of` turns into lists or objects within each other, so many."""
SIMPLE = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    st.one_of(SIMPLE, SIMPLE, NESTED),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=6,
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "huge", "zero", "splice", "cut"]),
        st.integers(0, 1 << 20),
        st.integers(0, 1 << 20),
        st.sampled_from([1, 2, 4, 8]),
    ),
    min_size=1,
    max_size=3,
)


def like(value: Any) -> st.SearchStrategy[Any]:
    """Values of the type of `value`, and now and then of others."""
    if isinstance(value, dict) and value:
        return record(value)
    if isinstance(value, list | tuple) and value:
        return st.lists(like(value[0]), max_size=4) | VALUES
    same = TEXTS if isinstance(value, str) else NUMBERS if isinstance(value, int | float) else VALUES
    return st.one_of(st.just(value), same, same, VALUES)


def record(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """`base` with some fields changed, and some more."""
    fields = st.one_of(*(st.tuples(st.just(name), like(value)) for name, value in base.items()))
    more = st.lists(st.one_of(fields, fields, fields, st.tuples(TEXTS, VALUES)), max_size=3)
    return more.map(lambda changes: {**base, **dict(changes)})


def text_of(value: Any) -> bytes:
    """`value` as JSON, with what NESTED stands for."""
    parts = json.dumps(value).split("@nested")
    text = parts[0]
    for part in parts[1:]:
        depth, _, rest = part[1:].partition("@")
        begin, end = ('{"a":', "}") if part[0] == "{" else ("[", "]")
        number = int(depth) if depth.isdecimal() else 1
        text = text.removesuffix('"') + begin * number + "1" + end * number + rest.removeprefix('"')
    return text.encode()


def file_of(base: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """The bytes of a JSON file like `base`: with odd values, or with changed bytes."""
    sound = text_of(base)
    odd = record(base).map(text_of)
    return st.one_of(odd, odd, odd, VALUES.map(text_of), CHANGES.map(lambda changes: changed(sound, changes)))


def changed(data: bytes, changes: Sequence[tuple[str, int, int, int]]) -> bytes:
    """`data` with bits flipped, numbers made huge or 0, pieces copied elsewhere, or its end cut off."""
    new = bytearray(data)
    for kind, place, other, size in changes:
        place, other = place % len(new), other % len(new)
        if kind == "flip":
            new[place] ^= 1 << other % 8
        elif kind == "huge":
            new[place : place + size] = (((1 << 8 * size) - 1) >> other % 16).to_bytes(size, "little")
        elif kind == "zero":
            new[place : place + size] = bytes(size)
        elif kind == "splice":
            new[place : place + 8 * size] = new[other : other + 8 * size]
        else:
            del new[max(16, place) :]
    return bytes(new)


def peak_mib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@contextmanager
def within_limits(name: str, outside: Path) -> Iterator[None]:
    """A case of the test `name`, which takes little time and memory, and touches nothing `outside`."""
    count(name)
    before, mib, began = contents_of(outside), peak_mib(), time.process_time()
    yield
    secs, grown = time.process_time() - began, peak_mib() - mib
    assert secs <= MAX_SECS, f"{secs:.1f} s"
    assert grown <= MAX_MIB, f"{grown} MiB"
    assert contents_of(outside) == before


def in_a_child(paths: Sequence[Path], try_one: Callable[[Path], str], limited: bool = False) -> str:
    """What `try_one` says of the first path that is wrong, or "": all in one process of their own, which may die of it.

    `limited`: with ADDRESS_BYTES more than it has.
    """
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(LIMIT_SECS) // 4)
            if limited:
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                most = pages * resource.getpagesize() + ADDRESS_BYTES
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            for path in paths:
                mib, began = peak_mib(), time.process_time()
                os.write(begin, b".")
                wrong, grown, secs = try_one(path), peak_mib() - mib, time.process_time() - began
                wrong = wrong or (f"{grown} MiB, {secs:.1f} s" if grown > MAX_MIB or secs > MAX_SECS else "")
                if wrong:
                    os.write(begin, wrong.encode(errors="replace"))
                    break
        finally:
            os._exit(0)
    os.close(begin)
    with open(end, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    wrong = said.lstrip(".")
    name = str(paths[len(said) - len(wrong) - 1])
    if os.WIFSIGNALED(status):
        return f"{name}: killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"{name}: {wrong}" if wrong else ""

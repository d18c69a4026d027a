"""What of an environment names its own place, made to name none: a pack is unpacked anywhere. Pure.

Scripts begin with the path of their interpreter; those of a pack look for one beside themselves. pyvenv.cfg names the
folder of Python; each node adds that line (slurm/pack.sh). Libraries find each other by $ORIGIN, and Open MPI from
wheels by OPAL_PREFIX, which slurm/pack.sh sets.
"""

from __future__ import annotations

MAX_SCRIPT_BYTES = 1 << 20
_ANY_PYTHON = b"#!/bin/sh\n'''exec' \"${0%/*}/python3\" \"$0\" \"$@\"\n' '''\n"
"""For a shell: run this file by the python3 beside it. For Python: a text that nobody uses."""


def script_of(content: bytes, prefix: str) -> bytes:
    """`content`, of a script that begins with an interpreter of `prefix`, so that it begins with the one beside it."""
    first, newline, rest = content.partition(b"\n")
    if first.startswith(f"#!{prefix}/bin/python".encode()) and newline:
        return _ANY_PYTHON + rest
    if first == b"#!/bin/sh" and rest.startswith(f"'''exec' {prefix}/bin/python".encode()):  # of a long path
        return _ANY_PYTHON + b"\n".join(rest.split(b"\n")[2:])
    if first == b"#!/bin/sh" and rest.startswith(f"'''exec' \"{prefix}/bin/python".encode()):
        return _ANY_PYTHON + b"\n".join(rest.split(b"\n")[2:])
    return content


def is_script(content: bytes) -> bool:
    """Whether the kernel has an interpreter run it."""
    return content.startswith(b"#!")

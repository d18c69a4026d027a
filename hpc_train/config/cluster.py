"""`cluster:` of a program's job file: TensorFlow's roles, and how many ranks have each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

ROLES = ("chief", "worker", "ps", "evaluator")
"""As TensorFlow names them in TF_CONFIG."""
_ONCE = ("chief", "evaluator")


def _of_tensorflow(cluster: dict[str, int]) -> dict[str, int]:
    """ValueError where no strategy of TensorFlow's has such a cluster."""
    if strange := [role for role in cluster if role not in ROLES]:
        raise ValueError(f"{strange[0]!r} is not a role; allowed: {', '.join(ROLES)}")
    if several := [role for role in _ONCE if cluster.get(role, 1) > 1]:
        raise ValueError(f"{several[0]}: {cluster[several[0]]} is not allowed; a cluster has one {several[0]} at most")
    if "ps" in cluster and not {"chief", "worker"} <= cluster.keys():
        raise ValueError("with `ps`, TensorFlow wants a `chief` and `worker`s, too: {chief: 1, worker: 2, ps: 1}")
    if not {"chief", "worker"} & cluster.keys():
        raise ValueError("no role trains; add `worker`")
    return cluster


Cluster = Annotated[
    dict[str, Annotated[int, Field(gt=0, le=1_000_000, strict=True)]],
    AfterValidator(_of_tensorflow),
]


def words_of(cluster: Mapping[str, int]) -> str:
    """As one word of a command line: "chief=1,worker=2,ps=1"."""
    return ",".join(f"{role}={count}" for role, count in cluster.items())


def cluster_in(word: str) -> dict[str, int]:
    """What `words_of` has written.

    Raises:
        ValueError: It is something else.
    """
    pairs = [part.split("=") for part in word.split(",")]
    return _of_tensorflow({role: int(count) for role, count in pairs})

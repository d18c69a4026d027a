"""Which rank has which role of TensorFlow's cluster, and what TF_CONFIG says. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """One rank of a cluster: `role` as TensorFlow calls it, and its number among those of that role, from 0."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


def members(cluster: Mapping[str, int]) -> list[Member]:
    """By rank: the roles in the order in which the job file has them."""
    return [Member(role, index) for role, count in cluster.items() for index in range(count)]


def is_server(member: Member, cluster: Mapping[str, int]) -> bool:
    """Whether its program runs a server for the chief, which never ends by itself.

    With `ps` that is all but the chief and an evaluator.
    """
    return "ps" in cluster and member.role in ("ps", "worker")


def tf_config(cluster: Mapping[str, int], addresses: Sequence[str], rank: int) -> str:
    """The text of TF_CONFIG for `rank`.

    Args:
        addresses: "host:port" by rank. An evaluator's is in nobody's: it belongs to no cluster for TensorFlow.
    """
    everyone = members(cluster)
    spec: dict[str, list[str]] = {}
    for member, address in zip(everyone, addresses, strict=True):
        if member.role != "evaluator":
            spec.setdefault(member.role, []).append(address)
    task = {"type": everyone[rank].role, "index": everyone[rank].index}
    return json.dumps({"cluster": spec, "task": task})

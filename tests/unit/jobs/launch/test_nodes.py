"""On which nodes a job goes on that has lost some."""

from __future__ import annotations

import pytest

from hpc_train.jobs.launch.nodes import NextRun, Node, Wanted, next_run

TWO_OF_THREE = Wanted(nodes=3, min_nodes=2, ranks_per_node=2)


def nodes(text: str) -> list[Node]:
    """Of words such as "n1", "n2=down*", "n3?" (does not answer), "n4+" (spare), "n5~slow"."""
    found = []
    for word in text.split():
        name, _, state = word.rstrip("?+").removesuffix("~slow").partition("=")
        found.append(Node(name, state, "?" not in word, "+" not in word, "~slow" in word))
    return found


def decide(text: str, wanted: Wanted = TWO_OF_THREE, code: int = 205, multiple: int = 1) -> NextRun:
    return next_run(nodes(text), wanted, code, lambda ranks: ranks % multiple == 0)


@pytest.mark.parametrize(
    ("text", "kept", "why"),
    [
        ("n1 n2 n3", "n1 n2 n3", "mpirun lost a node, 6 ranks on 3 nodes: n1, n2, n3"),
        ("n1 n2? n3", "n1 n3", "n2 does not answer, 4 ranks on 2 nodes: n1, n3"),
        ("n1 n2=down* n3", "n1 n3", "n2 is down, 4 ranks on 2 nodes: n1, n3"),
        ("n1=draining n2 n3", "n2 n3", "n1 is draining, 4 ranks on 2 nodes: n2, n3"),
        ("n1 n2? n3 n4+", "n1 n3 n4", "n2 does not answer, 6 ranks on 3 nodes: n1, n3, n4"),
        ("n1 n2 n3 n4+", "n1 n2 n3", "mpirun lost a node, 6 ranks on 3 nodes: n1, n2, n3"),
        ("n1+ n2? n3 n4", "n1 n3 n4", "n2 does not answer, 6 ranks on 3 nodes: n1, n3, n4"),
        ("n1 n2~slow n3", "n1 n3", "n2 is slow, 4 ranks on 2 nodes: n1, n3"),
        ("n1 n2~slow n3 n4+", "n1 n3 n4", "n2 is slow, 6 ranks on 3 nodes: n1, n3, n4"),
        ("n1 n2~slow n3?", "n1 n2", "n3 does not answer, 4 ranks on 2 nodes: n1, n2"),
        ("n1=mixed* n2=idle n3=allocated", "n1 n2 n3", "mpirun lost a node, 6 ranks on 3 nodes: n1, n2, n3"),
    ],
)
def test_the_nodes_of_the_next_run(text: str, kept: str, why: str) -> None:
    assert decide(text) == NextRun("run", tuple(kept.split()), why)


@pytest.mark.parametrize(
    ("text", "kept", "why"),
    [
        ("n1+ n2+ n3+ n4+", "n1 n2 n3", ""),
        ("n1+ n2~slow+ n3+ n4+", "n1 n3 n4", "n2 is slow, 6 ranks on 3 nodes: n1, n3, n4"),
        ("n1+ n2~slow+ n3~slow+", "n1 n2 n3", ""),
    ],
)
def test_the_nodes_of_the_first_run(text: str, kept: str, why: str) -> None:
    found = next_run(nodes(text), TWO_OF_THREE, None, lambda ranks: True)
    assert found == NextRun("run", tuple(kept.split()), why)


def test_a_size_that_does_not_suit_the_job_is_not_changed_where_it_begins() -> None:
    wanted = Wanted(nodes=3, min_nodes=1, ranks_per_node=1)
    for text in ("n1+ n2+ n3+ n4+", "n1+ n2~slow+ n3+ n4~slow+"):
        found = next_run(nodes(text), wanted, None, lambda ranks: ranks % 2 == 0)
        assert found == NextRun("end", why="the job cannot run on the ranks of 3 nodes")


def test_too_few_nodes_are_a_requeue() -> None:
    few = "n2 does not answer, n3 is down, 1 usable node left of 3, and min_nodes is 2"
    assert decide("n1 n2? n3=down") == NextRun("requeue", why=few)
    assert decide("").action == "requeue"


def test_the_ranks_have_to_suit_the_job() -> None:
    wanted = Wanted(nodes=4, min_nodes=1, ranks_per_node=1)
    assert decide("n1 n2 n3 n4?", wanted, multiple=2).nodes == ("n1", "n2")
    found = decide("n1 n2? n3? n4?", wanted, multiple=2)
    assert found.action == "requeue"
    assert found.why.endswith(", the job cannot run on the ranks of 1 usable node")


@pytest.mark.parametrize(
    ("code", "text", "action"),
    [
        (137, "n1 n2 n3", "run"),
        (6, "n1 n2 n3", "run"),
        (1, "n1 n2 n3", "end"),
        (1, "n1 n2 n3=draining", "end"),
        (1, "n1 n2 n3?", "run"),
        (1, "n1 n2 n3 n4?+", "end"),
        (17, "n1 n2 n3", "end"),
        (17, "n1 n2 n3=down", "run"),
        *((code, "n1 n2 n3?", "end") for code in (2, 3, 4, 5, 7, 8, 9, 10, 11, 12)),
    ],
)
def test_what_is_no_matter_of_nodes(code: int, text: str, action: str) -> None:
    assert decide(text, code=code).action == action


def test_the_words_are_one_short_line_whatever_the_size() -> None:
    found = decide(" ".join(f"n{i}{'?' if i % 2 else ''}" for i in range(1000)), Wanted(1000, 1, 128))
    assert len(found.why) < 400 and ";" not in found.why and "\n" not in found.why
    assert len(found.nodes) == 500

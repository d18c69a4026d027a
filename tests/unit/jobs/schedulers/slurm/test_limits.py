"""What sinfo prints, as Slurm 22.05 does, and what a job asks for beyond it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.resources import Resources
from hpc_train.jobs.schedulers.slurm.limits import (
    SINFO_FORMAT,
    NodeGroup,
    Partition,
    parse_sinfo,
    shortfalls,
    sinfo_command,
)

SINFO = """\
test*|up|infinite|1-infinite|2|2|1|(null)|(null)|idle
gpu|up|1-00:00:00|1-3|4|16|65536|gpu:a100:4(S:0-1),shard:8|a100,ib|mix
gpu|up|1-00:00:00|1-3|3|8|64000|gpu:v100:2,gpu:t4:1|ib|down*
big|up|30:00|17-infinite|2000|2048|2000000|(null)|big|idle~
same|drain|1:30:00|2|3|8|64000|(null)|(null)|drained
none|up|90-00:00:00|1-infinite|0|0|0|(null)|(null)|n/a

off|inactive|infinite|1-infinite|3|8+|64000+|gpu|(null)|alloc
"""


def partition(name: str, text: str = SINFO) -> Partition:
    return {one.name: one for one in parse_sinfo(text)}[name]


def wanted(**options: Any) -> Resources:
    return Resources(tier="T", **options)


def only(text: str = SINFO, **options: Any) -> str:
    """The one shortfall."""
    (sentence,) = shortfalls(wanted(**options), parse_sinfo(text))
    return sentence


def test_what_is_asked_of_sinfo() -> None:
    command = sinfo_command()
    assert command[0] == "sinfo" and command[-1] == f"--format={SINFO_FORMAT}"
    assert "--noconvert" in command, "2048 would be 2K"


def test_partitions_in_the_order_of_sinfo() -> None:
    partitions = parse_sinfo(SINFO)
    assert [one.name for one in partitions] == ["test", "gpu", "big", "same", "none", "off"]
    assert [one.name for one in partitions if one.default] == ["test"]
    assert [one.name for one in partitions if not one.up] == ["same", "off"]
    assert [one.max_time_secs for one in partitions] == [None, 86400, 1800, 5400, 90 * 86400, None]
    assert [(one.min_nodes, one.max_nodes) for one in partitions[:4]] == [(1, None), (1, 3), (17, None), (2, 2)]
    assert [one.nodes for one in partitions] == [2, 7, 2000, 3, 0, 3]


def test_groups_of_nodes() -> None:
    assert partition("test").groups == (NodeGroup(2, 2, None, 0, frozenset(), True),)
    assert partition("gpu").groups == (
        NodeGroup(4, 16, 65536, 4, frozenset(["a100", "ib"]), True),
        NodeGroup(3, 8, 64000, 3, frozenset(["ib"]), False),
    )
    assert partition("none").groups == ()
    assert partition("off").groups == (NodeGroup(3, 8, 64000, 1, frozenset(), True),)


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        *(
            (state, True)
            for state in ("idle", "idle~", "mix", "alloc", "comp", "maint", "resv", "plnd", "idle#", "mix-")
        ),
        *((state, False) for state in ("down", "down*", "drain", "drng", "idle*", "fail", "unk*", "inval", "drain$")),
    ],
)
def test_states_of_nodes(state: str, usable: bool) -> None:
    (group,) = partition("p", f"p|up|infinite|1-infinite|1|1|1|(null)|(null)|{state}").groups
    assert group.usable is usable


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:2", 2),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("gpu:tesla:2(S:0,1)", 2),
        ("gpu:a100:no_consume:8", 8),
        ("gpu:1g.5gb:7,gpu:a100:1", 8),
        ("shard:16,license:2", 0),
        ("nic:1,gpu:h100:4(S:0-3)", 4),
    ],
)
def test_gpus_among_other_resources(gres: str, gpus: int) -> None:
    (group,) = partition("p", f"p|up|infinite|1-infinite|1|1|1|{gres}|(null)|idle").groups
    assert group.gpus == gpus


@pytest.mark.parametrize(
    "line",
    [
        "slurm_load_partitions: Unable to contact slurm controller",
        "test|up|infinite|1-infinite|2|2|1|(null)|(null)",
        "test|up|soon|1-infinite|2|2|1|(null)|(null)|idle",
        "test|up|infinite|some|2|2|1|(null)|(null)|idle",
        "test|up|infinite|1-infinite|2|2K|1|(null)|(null)|idle",
        "test|up|infinite|1-infinite|-2|2|1|(null)|(null)|idle",
        "*|up|infinite|1-infinite|2|2|1|(null)|(null)|idle",
    ],
)
def test_a_line_that_is_not_understood_is_shown(line: str) -> None:
    with pytest.raises(ValueError, match="which is not understood") as caught:
        parse_sinfo(SINFO + line)
    assert repr(line) in str(caught.value)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("|*:-(),0159"), max_size=60)))
def test_whatever_sinfo_prints_is_read_or_refused(lines: list[str]) -> None:
    try:
        partitions = parse_sinfo("\n".join(lines))
    except ValueError as error:
        assert "sinfo printed" in str(error)
    else:
        assert len(partitions) <= len(lines)


@given(st.lists(st.text(st.sampled_from("|*:-(),+~05agpunfite"), max_size=12), min_size=10, max_size=10))
def test_whatever_ten_fields_hold_is_read_or_refused(fields: list[str]) -> None:
    line = "|".join(fields)
    try:
        parse_sinfo(line)
    except ValueError as error:
        assert "sinfo printed" in str(error)


def test_a_job_that_fits() -> None:
    assert shortfalls(wanted(), parse_sinfo(SINFO)) == []
    assert shortfalls(wanted(nodes=2, ranks_per_node=2, time="300-00:00:00"), parse_sinfo(SINFO)) == []
    gpus = wanted(
        partition="gpu", nodes=3, ranks_per_node=4, cores_per_rank=4, gpus_per_node=4, memory="64G", time=1440
    )
    assert shortfalls(gpus, parse_sinfo(SINFO)) == []
    assert shortfalls(wanted(partition="gpu"), parse_sinfo(SINFO.replace("|mix", "|down"))) == [], "Slurm lets it wait"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"partition": "gpus"},
            "partition: 'gpus' is not one of this cluster; did you mean `gpu`? "
            "there are: test, gpu, big, same, none, off",
        ),
        (
            {"partition": "gpu", "time": 1441},
            "time: 1-00:01:00 is above the limit of partition 'gpu', 1-00:00:00; set `time: 1-00:00:00` at most, "
            "or set `partition` to test",
        ),
        (
            {"nodes": 3},
            "nodes: 3 wanted, but partition 'test' has 2 nodes; set `nodes: 2` at most, or set `partition` to gpu",
        ),
        (
            {"partition": "gpu", "nodes": 4, "ranks_per_node": 8},
            "nodes: 4 wanted, but partition 'gpu' gives a job 3 at most; set `nodes: 3` at most",
        ),
        (
            {"partition": "big", "nodes": 16},
            "nodes: 16 wanted, but partition 'big' takes no job of less than 17; set `nodes: 17` at least",
        ),
        (
            {"ranks_per_node": 2, "cores_per_rank": 4},
            "ranks_per_node x cores_per_rank: 2 x 4 = 8 cores wanted on each node, but nodes of partition 'test' have "
            "2 at most; ask for less of the two, or set `partition` to gpu",
        ),
        (
            {"gpus_per_node": 1},
            "gpus_per_node: 1 GPU wanted on each node, but nodes of partition 'test' have none; "
            "set `gpus_per_node: 0`, or set `partition` to gpu",
        ),
        (
            {"partition": "gpu", "gpus_per_node": 5},
            "gpus_per_node: 5 GPUs wanted on each node, but nodes of partition 'gpu' have 4 at most; "
            "set `gpus_per_node: 4`",
        ),
        (
            {"memory": "64G"},
            "memory: 64G wanted, but nodes of partition 'test' have none configured in Slurm, which refuses such jobs; "
            "leave `memory` out, or set `partition` to gpu",
        ),
        (
            {"partition": "gpu", "memory": "65G"},
            "memory: 65G wanted on each node, but nodes of partition 'gpu' have 64G at most; set `memory: 64G` at most",
        ),
        (
            {"partition": "gpu", "constraint": "h100"},
            "constraint: 'h100' is what no node of partition 'gpu' has; choose among the features there are (a100, ib)",
        ),
        (
            {"constraint": "ib&a100"},
            "constraint: 'ib&a100' is what no node of partition 'test' has; leave `constraint` out, "
            "or set `partition` to gpu",
        ),
        (
            {"partition": "none"},
            "partition 'none' has no nodes; ask who runs the cluster, or set `partition` to test or gpu",
        ),
        (
            {"partition": "off", "nodes": 3},
            "partition 'off' is closed, so that it starts no jobs; ask who runs the cluster, or set `partition` to gpu",
        ),
    ],
)
def test_a_job_that_does_not_fit(options: dict[str, Any], sentence: str) -> None:
    assert only(**options) == sentence


def test_no_partition_is_given_and_none_is_the_default() -> None:
    text = SINFO.replace("*|up", "|up")
    assert only(text) == (
        "partition: none is given, and this cluster has no default one; set `partition`; "
        "there are: test, gpu, big, same, none, off"
    )
    assert shortfalls(wanted(partition="test"), parse_sinfo(text)) == []
    assert "there are: none" in only("")


def test_nodes_need_all_that_is_asked_for_at_the_same_time() -> None:
    text = (
        "p*|up|infinite|1-infinite|4|64|256000|(null)|ib|idle\n"
        "p*|up|infinite|1-infinite|2|16|64000|gpu:4|ib|idle\n"
        "p*|up|infinite|1-infinite|1|16|64000|gpu:4|(null)|idle\n"
    )
    assert only(text, nodes=3, gpus_per_node=4, constraint="ib") == (
        "nodes: 3 nodes with 1 core, 4 GPUs and the constraint 'ib' wanted, but only 2 of the 7 nodes of partition 'p' "
        "have all of that; ask for fewer nodes or for less on each"
    )
    assert "1 node with 32 cores, 60G and 1 GPU wanted, but only 0 of the 7" in only(
        text, ranks_per_node=32, memory="60G", gpus_per_node=1
    )
    assert shortfalls(wanted(nodes=3, gpus_per_node=4), parse_sinfo(text)) == []
    assert shortfalls(wanted(nodes=7, cores_per_rank=16), parse_sinfo(text)) == []


def test_each_wish_that_cannot_be_fulfilled_is_told() -> None:
    told = shortfalls(wanted(nodes=9, ranks_per_node=99, gpus_per_node=9, memory="9T"), parse_sinfo(SINFO))
    assert [sentence.partition(":")[0] for sentence in told] == [
        "nodes",
        "ranks_per_node x cores_per_rank",
        "memory",
        "gpus_per_node",
    ]


@pytest.mark.parametrize("constraint", ["a100", "a100&ib", "h100|a100", "a100*2&ib*4", "h100&(x|y)", "a&b|c", "h100,x"])
def test_constraints_that_hold_or_are_left_to_slurm(constraint: str) -> None:
    assert shortfalls(wanted(partition="gpu", constraint=constraint), parse_sinfo(SINFO)) == []


@pytest.mark.parametrize("constraint", ["h100", "a100&h100", "h100|v100"])
def test_constraints_that_do_not_hold(constraint: str) -> None:
    assert only(partition="gpu", constraint=constraint).startswith(f"constraint: '{constraint}' is what no node")


def test_one_of_several_partitions_is_enough() -> None:
    assert shortfalls(wanted(partition="test,gpu", gpus_per_node=4), parse_sinfo(SINFO)) == []
    told = shortfalls(wanted(partition="test,gpu", gpus_per_node=8), parse_sinfo(SINFO))
    assert ["'test'" in told[0], "'gpu'" in told[1], len(told)] == [True, True, 2]
    assert "'gup' is not one of this cluster; did you mean `gpu`?" in only(partition="test,gup")


GROUPS = st.builds(
    NodeGroup,
    count=st.integers(1, 6),
    cores=st.integers(2, 16),
    memory=st.none() | st.integers(2, 16 * 1024),
    gpus=st.integers(0, 4),
    features=st.sampled_from(["", "a", "b", "ab"]).map(frozenset),
    usable=st.booleans(),
)
PARTITIONS = st.builds(
    lambda *them: [Partition(name, name == "p", *rest) for name, rest in zip("pqr", them, strict=False)],
    *[
        st.tuples(
            st.sampled_from([True, True, True, False]),
            st.none() | st.integers(60, 600),
            st.just(1),
            st.none() | st.integers(1, 6),
            st.lists(GROUPS, min_size=1, max_size=3).map(tuple),
        )
    ]
    * 2,
)


@st.composite
def asked(draw: st.DrawFn, most: Resources | None = None) -> Resources:
    """Resources; no more of anything than `most`."""

    def number(name: str, least: int, top: int) -> int:
        return draw(st.integers(least, getattr(most, name) if most else top))

    time = draw(st.integers(1, (most.time_secs or 720) // 60 if most else 12))
    memory = draw(st.integers(1, int((most.memory or "9G")[:-1]) if most else 9))
    has_no_memory = draw(st.booleans()) if most is None or most.memory else True
    return wanted(
        nodes=number("nodes", 1, 4),
        ranks_per_node=number("ranks_per_node", 1, 3),
        cores_per_rank=number("cores_per_rank", 1, 3),
        gpus_per_node=number("gpus_per_node", 0, 2),
        memory=None if has_no_memory else f"{memory}G",
        time=time,
        constraint=most.constraint if most else draw(st.sampled_from([None, "a", "a&b", "a|b"])),
        partition=most.partition if most else draw(st.sampled_from([None, "p", "q", "p,q"])),
    )


@given(PARTITIONS, st.data())
def test_what_can_be_had_can_be_had_when_less_is_asked(partitions: list[Partition], data: st.DataObject) -> None:
    more = data.draw(asked())
    less = data.draw(asked(most=more))
    if not shortfalls(more, partitions):
        assert shortfalls(less, partitions) == []


@given(PARTITIONS, asked())
def test_nodes_that_are_down_count(partitions: list[Partition], resources: Resources) -> None:
    up = [
        Partition(p.name, p.default, p.up, p.max_time_secs, 1, p.max_nodes, tuple(_usable(g) for g in p.groups))
        for p in partitions
    ]
    assert shortfalls(resources, up) == shortfalls(resources, partitions)


def _usable(group: NodeGroup) -> NodeGroup:
    return NodeGroup(group.count, group.cores, group.memory, group.gpus, group.features, True)


def test_roles_are_looked_at_one_by_one_and_together() -> None:
    text = "cpu*|up|infinite|1-infinite|3|8|16000|(null)|(null)|idle\n"
    text += "gpu|up|infinite|1-infinite|2|8|16000|gpu:4|(null)|idle"
    partitions = parse_sinfo(text)

    def lacking(**roles: dict[str, object]) -> list[str]:
        return shortfalls(Resources(tier="T", **roles), partitions)

    assert lacking(chief={}, workers={"nodes": 2}) == []
    assert lacking(parameter_servers={"nodes": 3}, workers={"nodes": 2, "partition": "gpu", "gpus_per_node": 4}) == []
    assert lacking(chief={}, workers={"nodes": 3}) == [
        "chief, workers: 4 nodes wanted together, but partition 'cpu' has 3 nodes; ask for fewer"
    ]
    (one,) = lacking(chief={"gpus_per_node": 1}, workers={"partition": "gpu"})
    assert one.startswith("chief: gpus_per_node: 1 GPU wanted on each node, but nodes of partition 'cpu' have none")

"""What the ranks of a node are bound to, on nodes of several kinds that are written out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.resources import Bind
from hpc_train.distributed import binding
from hpc_train.distributed.affinity import Binding, RankView, bindings, cpus_of_a_job
from hpc_train.distributed.binding import node_bindings, wanted_binding, why_not
from hpc_train.distributed.launch_env import LaunchPlace
from hpc_train.distributed.topology import Gpu, Topology, TopologyError, cpu_list, cpu_text, domain_count, read_topology
from hpc_train.errors import UserError


def node(domains: int, each: int, smt: int = 1, gpus: Sequence[int] = ()) -> Topology:
    """`each` cores in a domain, numbered as Linux does it: first one CPU of each core, then their siblings."""
    total = domains * each
    cores = tuple(frozenset(range(core, total * smt, total)) for core in range(total))
    inside = {n: frozenset().union(*cores[n * each : (n + 1) * each]) for n in range(domains)}
    return Topology(inside, cores, tuple(Gpu(f"GPU-{i}", inside[n]) for i, n in enumerate(gpus)))


def views(topology: Topology, ranks: int, mask: str | None = None, gpus: bool = False) -> list[RankView]:
    every = frozenset().union(*topology.cores)
    own = every if mask is None else cpu_list(mask)
    return [RankView(own, str(rank) if gpus else None) for rank in range(ranks)]


def cpus(found: Sequence[Binding]) -> list[str]:
    return [one.cpus for one in found]


SOCKET, TWO, NPS4 = node(1, 8), node(2, 16, 2, [0, 0, 0, 0, 1, 1, 1, 1]), node(4, 16, 2, [3, 1, 0, 2])


def test_one_socket() -> None:
    assert cpus(bindings("core", views(SOCKET, 2), SOCKET, 3)) == ["0-2", "3-5"]
    assert cpus(bindings("core", views(SOCKET, 3), SOCKET, None)) == ["0-1", "2-3", "4-5"]
    for bind in ("numa", "auto"):
        assert bindings(bind, views(SOCKET, 2), SOCKET, None) == [Binding(why="all CPUs are in one NUMA domain")] * 2  # type: ignore[arg-type]


def test_two_sockets_with_eight_gpus() -> None:
    found = bindings("auto", views(TWO, 8, gpus=True), TWO, 4)
    assert cpus(found) == ["0-15,32-47"] * 4 + ["16-31,48-63"] * 4
    assert found[0].described() == {"by": "hpc_train", "cpus": "0-15,32-47", "numa": "0"}
    own = bindings("core", views(TWO, 8, gpus=True), TWO, 4)
    assert cpus(own)[:2] == ["0-3,32-35", "4-7,36-39"] and cpus(own)[4] == "16-19,48-51"


def test_four_domains_of_one_socket_whose_gpus_are_in_another_order() -> None:
    assert [one.numa for one in bindings("numa", views(NPS4, 4, gpus=True), NPS4, None)] == ["3", "1", "0", "2"]
    assert [one.numa for one in bindings("core", views(NPS4, 4, gpus=True), NPS4, 16)] == ["3", "1", "0", "2"]
    assert [one.numa for one in bindings("numa", views(NPS4, 2), NPS4, None)] == ["0-1", "2-3"]


def test_auto_leaves_no_rank_with_less_than_it_needs() -> None:
    few = bindings("auto", views(TWO, 1, gpus=True), TWO, None)
    assert few == [Binding(why="a NUMA domain has too few CPUs for its ranks")]
    assert cpus(bindings("auto", views(TWO, 1, gpus=True), TWO, 8)) == ["0-15,32-47"]
    assert cpus(bindings("numa", views(TWO, 1, gpus=True), TWO, None)) == ["0-15,32-47"]
    assert bindings("auto", views(TWO, 1), TWO, None)[0].why == "each rank has all NUMA domains"


def test_a_part_of_the_node_with_holes() -> None:
    own = bindings("core", views(TWO, 2, "2,4-5,17,34,49"), TWO, None)
    assert cpus(own) == ["2,4,34", "5,17,49"]
    assert cpus(bindings("numa", views(TWO, 2, "2,4-5,17,34,49"), TWO, None)) == ["2,4-5,34", "17,49"]


def test_more_ranks_than_cores() -> None:
    found = bindings("core", views(SOCKET, 9), SOCKET, 1)
    assert found == [Binding(why="bind: core: the node has 8 cores for 9 ranks", warns=True)] * 9


def test_a_card_is_preferred_where_domains_are_left_over() -> None:
    near = Topology(TWO.domains, TWO.cores, (), {"mlx5_0": TWO.domains[1]})
    assert bindings("core", views(near, 1), near, 2)[0].numa == "1"
    assert bindings("core", views(TWO, 1), TWO, 2)[0].numa == "0"


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 8) | st.none(),
    st.data(),
)
def test_cores_of_their_own(domains: int, each: int, smt: int, ranks: int, threads: int | None, data: Any) -> None:
    topology = node(domains, each, smt, data.draw(st.lists(st.integers(0, domains - 1), max_size=ranks)))
    every = sorted(frozenset().union(*topology.cores))
    mask = frozenset(data.draw(st.sets(st.sampled_from(every), min_size=1)))
    ones = [RankView(mask, str(rank) if data.draw(st.booleans()) else None) for rank in range(ranks)]
    found = bindings("core", ones, topology, threads)
    usable = [core & mask for core in topology.cores if core & mask]
    if len(usable) < ranks:
        assert all(one.warns and not one.cpus for one in found)
        return
    given_cpus = [cpu_list(one.cpus) for one in found]
    assert sum(map(len, given_cpus)) == len(frozenset().union(*given_cpus)), "each CPU is one rank's"
    for own in given_cpus:
        assert own and own <= mask
        assert all(core <= own or not core & own for core in usable), "siblings stay together"
        assert sum(1 for core in usable if core <= own) == min(threads or len(usable), len(usable) // ranks)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 2), st.integers(1, 12), st.data())
def test_whole_domains(domains: int, each: int, smt: int, ranks: int, data: Any) -> None:
    topology = node(domains, each, smt, data.draw(st.lists(st.integers(0, domains - 1), max_size=ranks)))
    ones = views(topology, ranks, gpus=data.draw(st.booleans()))
    for bind in ("numa", "auto"):
        for one, view in zip(bindings(bind, ones, topology, None), ones, strict=True):  # type: ignore[arg-type]
            own = one.usable(view.mask)
            assert own and all(cpus <= own or not cpus & own for cpus in topology.domains.values())


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2), st.lists(st.integers(1, 6), max_size=6))
def test_jobs_at_once_share_nothing(domains: int, each: int, smt: int, wanted: list[int]) -> None:
    topology, taken = node(domains, each, smt), set[int]()
    mask = frozenset().union(*topology.cores)
    for count in wanted:
        own = cpus_of_a_job(count, mask, taken, topology)
        assert len(own) == (count if count <= len(mask) - len(taken) else 0) and taken.isdisjoint(own)
        assert own == () or set(own) <= mask
        taken.update(own)


def test_a_job_keeps_to_one_domain_and_its_gpu() -> None:
    assert cpu_text(cpus_of_a_job(4, range(64), (), TWO)) == "0-1,32-33"
    assert cpu_text(cpus_of_a_job(4, range(64), range(4), TWO, [5])) == "16-17,48-49"
    assert cpu_text(cpus_of_a_job(32, range(64), range(2), TWO)) == "16-31,48-63"
    assert cpus_of_a_job(4, range(4), range(1), SOCKET) == ()


@pytest.mark.parametrize("text", ["0-3,8,10-11", "", "5"])
def test_lists_of_cpus(text: str) -> None:
    assert cpu_text(cpu_list(f"{text}\n")) == text


@pytest.mark.parametrize("text", ["a", "3-1", "0-99999999", "1,,2", "-1", "0x3", "0-999999"])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(TopologyError, match="is no list of CPUs"):
        cpu_list(text)


def written(root: Path, topology: Topology) -> Path:
    """What Linux has in /sys and /proc of it."""
    files = {"sys/devices/system/node/has_cpu": cpu_text(topology.domains)}
    files["sys/devices/system/node/node9/cpulist"] = "\n"  # memory alone
    for number, own in topology.domains.items():
        files[f"sys/devices/system/node/node{number}/cpulist"] = cpu_text(own)
    for core in topology.cores:
        for cpu in core:
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = cpu_text(core)
    for number, gpu in enumerate(topology.gpus):
        address = f"0000:{number:02X}:00.0"
        files[f"proc/driver/nvidia/gpus/{address}/information"] = (
            f"GPU UUID: \t {gpu.uuid}\nDevice Minor: \t {number}\n"
        )
        files[f"sys/bus/pci/devices/{address.lower()}/local_cpulist"] = cpu_text(gpu.near)
    files["sys/class/infiniband/mlx5_0/device/local_cpulist"] = cpu_text(topology.domains[0])
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_linux_says_of_a_node(tmp_path: Path) -> None:
    root = written(tmp_path, NPS4)
    every = frozenset(range(128))
    found = read_topology(every, [f"nvidia{i}" for i in range(4)], root)
    assert (found.domains, found.cores, found.gpus) == (NPS4.domains, NPS4.cores, NPS4.gpus)
    assert found.cards == {"mlx5_0": NPS4.domains[0]} and domain_count(root) == 4
    few = read_topology(every, ["nvidia1", "nvidia3"], root)
    assert [few.gpu_domain(name) for name in ("0", "1", "2", "GPU-3", "GPU-0", None)] == [1, 2, None, 2, None, None]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("node/node1/cpulist", "0-31", "a CPU is in two NUMA domains"),
        ("node/node1/cpulist", "zero", "is no list of CPUs"),
        ("node/node0/cpulist", "0-3", "CPU 4 is in no NUMA domain"),
        ("cpu/cpu3/topology/thread_siblings_list", "3-4", "a CPU is in two cores"),
        ("cpu/cpu3/topology/thread_siblings_list", "", "CPU 3 is in no core"),
        ("cpu/cpu3/topology/thread_siblings_list", "0," * 10_000, "cannot be read: has more than"),
        ("cpu/cpu3/topology/thread_siblings_list", None, "cannot be read: No such file"),
    ],
)
def test_what_linux_cannot_say(tmp_path: Path, file: str, text: str | None, said: str) -> None:
    path = written(tmp_path, node(2, 16)) / "sys/devices/system" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(TopologyError, match=said):
        read_topology(range(32), (), tmp_path)


@pytest.mark.parametrize(
    ("bind", "env", "said"),
    [
        ("auto", {}, "other programs may run here"),
        ("core", {}, None),
        ("none", {}, "bind is none"),
        ("auto", {"HPC_TRAIN_OWN_CPUS": "0-9"}, None),
        ("auto", {"HPC_TRAIN_OWN_CPUS": "0-3"}, "other programs may run here"),
        ("auto", {"HPC_TRAIN_OWN_CPUS": "all"}, "other programs may run here"),
        ("numa", {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8"}, None),
        ("numa", {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "7"}, "other jobs may run here: Slurm gave 7 of 8 CPUs"),
        ("core", {"SLURM_JOB_ID": "1"}, "other jobs may run here: Slurm gave unknown of 8 CPUs"),
    ],
)
def test_where_the_cpus_may_be_others(bind: Bind, env: dict[str, str], said: str | None) -> None:
    assert why_not(bind, env, range(8)) == said


def test_ranks_that_their_launcher_has_bound_are_left_alone() -> None:
    ones = [RankView(frozenset({0})), RankView(frozenset({1}))]
    assert node_bindings("auto", {}, ones, []) == [Binding("launcher", "0"), Binding("launcher", "1")]
    (first, _) = node_bindings("core", {}, ones, [])
    assert first.by == "launcher" and first.warns and "mpirun --bind-to none" in first.why


def test_what_cannot_be_read_is_told_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_topology(*_: Any) -> None:
        raise TopologyError("/sys is empty")

    monkeypatch.setattr(binding, "read_topology", read_topology)
    found = node_bindings("core", {}, views(SOCKET, 1), [])
    assert found == [Binding(why="bind: core: /sys is empty", warns=True)]


def test_what_the_variable_may_say() -> None:
    assert [wanted_binding({"HPC_TRAIN_BIND": bind}) for bind in get_args(Bind)] == [*get_args(Bind)]
    assert wanted_binding({}) == wanted_binding({"HPC_TRAIN_BIND": ""}) == "auto"
    with pytest.raises(UserError, match="HPC_TRAIN_BIND is 'socket'; allowed: none, core, numa, auto"):
        wanted_binding({"HPC_TRAIN_BIND": "socket"})


def test_ranks_as_one_of_them_expects_the_others() -> None:
    place = LaunchPlace(True, 4, 1, 2)
    assert binding.expected_views({}, place, [0, 1], 4) == [
        RankView(frozenset({0, 1}), "0"),
        RankView(frozenset({0, 1}), "1"),
    ]
    assert [one.device for one in binding.expected_views({"CUDA_VISIBLE_DEVICES": "3"}, place, [0], 4)] == ["3", "3"]
    assert [one.device for one in binding.expected_views({}, place, [0], 0)] == [None, None]

"""What a job file and a tier may ask of a cluster, and how the two are put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpc_train.config.resources import (
    WARNING_SECS,
    ResourceOptions,
    Resources,
    ResourcesSection,
    parse_memory,
    parse_time,
    resolve,
    time_text,
)


@given(st.integers(min_value=60, max_value=366 * 86400))
def test_a_time_is_read_as_it_is_written(secs: int) -> None:
    assert parse_time(time_text(secs)) == secs


@pytest.mark.parametrize(
    ("given_time", "text"),
    [
        (90, "01:30:00"),
        ("0:5:00", "00:05:00"),
        ("01:30:00", "01:30:00"),
        ("72:00:00", "3-00:00:00"),
        ("2-12:00:00", "2-12:00:00"),
        (24 * 60, "1-00:00:00"),
    ],
)
def test_times_in_all_their_forms(given_time: Any, text: str) -> None:
    assert ResourceOptions(time=given_time).time == text
    assert Resources(tier="T", time=given_time).time_secs == parse_time(text)


@pytest.mark.parametrize("value", ["90", "1:30", "01:60:00", "-1:00:00", "", "1-2", 1.5, True, [], "01:00:00\n"])
def test_what_is_no_time(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"is not a time; allowed: HH:MM:SS, D-HH:MM:SS, or minutes as a number"):
        ResourceOptions(time=value)


@pytest.mark.parametrize("value", [0, -5, "00:00:59", "366-00:00:01", 10**30])
def test_times_out_of_bounds(value: Any) -> None:
    with pytest.raises(ValidationError, match="a minute at least, a year at most"):
        ResourceOptions(time=value)


def test_roles_with_nodes_of_their_own_have_the_rest_of_the_tier() -> None:
    tier = ResourceOptions(nodes=4, ranks_per_node=4, cores_per_rank=8, gpus_per_node=4, partition="gpu")
    section = ResourcesSection(
        tier="T", chief={"memory": "64G"}, parameter_servers={"ranks_per_node": 2}, workers={"nodes": 2}
    )
    found = resolve(section, tier)
    assert found.roles == ["chief", "parameter_servers", "workers"]
    seen = [(one.nodes, one.ranks_per_node, one.gpus_per_node, one.memory, one.partition) for one in found.components]
    assert seen == [(1, 1, 4, "64G", "gpu"), (1, 2, 0, None, "gpu"), (2, 4, 4, None, "gpu")]
    assert found.ranks == 1 + 2 + 8 and not any(one.roles for one in found.components)
    assert Resources(**found.model_dump(mode="json")) == found
    alike = resolve(ResourcesSection(tier="T"), tier)
    assert (alike.roles, alike.components, alike.ranks) == ([], [alike], 16)


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"chief": {}}, "`chief` has nodes of its own, and no `workers` have; add `workers`"),
        ({"workers": {}, "min_nodes": 1}, "`min_nodes` is not for a job whose roles have nodes of their own"),
        ({"workers": {}, "nodes": 2, "spare_nodes": 1}, "`spare_nodes` is not for a job whose roles"),
        ({"workers": {"time": 90}}, "workers.time"),
        ({"workers": {"nodes": 0}}, "workers.nodes"),
    ],
)
def test_roles_that_are_refused(roles: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Resources(tier="T", **roles)


@given(st.integers(1, 10**9 - 1), st.sampled_from("MGT"))
def test_memory(count: int, unit: str) -> None:
    assert parse_memory(f"{count}{unit}") == count * 1024 ** "MGT".index(unit)
    assert ResourceOptions(memory=f"{count}{unit}").memory == f"{count}{unit}"


@pytest.mark.parametrize("value", [16, "16", "16 G", "0G", "1.5G", "16g", "16K", "", "16G\n", True])
def test_what_is_no_memory(value: Any) -> None:
    with pytest.raises(ValidationError, match="is not a size of memory; allowed: such as 500M, 16G or 1T"):
        ResourceOptions(memory=value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": 0}, "greater than 0"),
        ({"nodes": 1.0}, "valid integer"),
        ({"ranks_per_node": "2"}, "valid integer"),
        ({"gpus_per_node": -1}, "greater than or equal to 0"),
        ({"partition": "a b"}, "should match pattern"),
        ({"partition": "-x"}, "should match pattern"),
        ({"account": "x\n"}, "should match pattern"),
        ({"constraint": "a;b"}, "should match pattern"),
        ({"modules": ["cuda", "$(rm)"]}, "should match pattern"),
        ({"environment": {"A B": "1"}}, "'A B' is not the name of a variable"),
        ({"environment": {"A": "1\n2"}}, "A: .* is not allowed; allowed: text of one line"),
        ({"environment": {"HPC_TRAIN_X": 1}}, "HPC_TRAIN_X: variables that begin with HPC_TRAIN_ are set by hpc_train"),
        ({"environment": {"A": None}}, "A: its value is not allowed"),
        ({"environment": ["A=1"]}, "valid dictionary"),
        ({"sbatch": ["-p test"]}, "allowed: --option or --option=value"),
        ({"sbatch": ["--mail-user=a\n#SBATCH --x"]}, "on one line"),
        ({"sbatch": ["--partition=x"]}, "--partition is set by hpc-train submit; use the key of `resources`"),
        ({"sbatch": ["--no-requeue"]}, "--no-requeue is set by hpc-train submit"),
        ({"warning_secs": 5}, "greater than or equal to 10"),
        ({"time": 10, "warning_secs": 301}, "`warning_secs`: 301 is more than half of the time limit 00:10:00"),
        ({"node": 2}, "Extra inputs"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ResourceOptions(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": 2, "min_nodes": 3}, "`min_nodes`: 3 is more than `nodes`: 2; allowed: 1 to `nodes`"),
        ({"min_nodes": 2}, "`min_nodes`: 2 is more than `nodes`: 1"),
        ({"spare_nodes": 1}, "`spare_nodes`: 1 is of no use to a job of one node"),
        ({"min_nodes": 2, "spare_nodes": 1}, "`min_nodes`: 2 .*; `spare_nodes`: 1"),
        ({"nodes": 2, "min_nodes": 0}, "greater than 0"),
        ({"nodes": 4, "min_nodes": 2, "launcher": "srun"}, "`launcher`: srun starts no job that goes on"),
        ({"launcher": "ssh"}, "'mpirun' or 'srun'"),
        ({"nodes": 2, "spare_nodes": -1}, "greater than or equal to 0"),
    ],
)
def test_nodes_that_cannot_be_lost(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Resources(tier="T", **options)


@pytest.mark.parametrize(
    ("options", "least", "asked"),
    [
        ({"nodes": 4}, None, 4),
        ({"nodes": 4, "min_nodes": 2}, 2, 4),
        ({"nodes": 4, "spare_nodes": 2}, 4, 6),
        ({"nodes": 4, "spare_nodes": 2, "min_nodes": 1}, 1, 6),
    ],
)
def test_nodes_that_may_be_lost(options: dict[str, Any], least: int | None, asked: int) -> None:
    wants = Resources(tier="T", **options)
    assert (wants.least_nodes, wants.asked_nodes, wants.ranks) == (least, asked, 4)


def test_values_of_variables_become_text() -> None:
    given_values: dict[str, Any] = {"A": 1, "B": 0.5, "C": True, "D": "x y; $z"}
    assert ResourceOptions(environment=given_values).environment == {"A": "1", "B": "0.5", "C": "true", "D": "x y; $z"}


def test_what_nobody_says_is_one_rank_on_one_core() -> None:
    got = resolve(ResourcesSection(tier="CUSTOM"), ResourceOptions())
    assert got == Resources(tier="CUSTOM", nodes=1, ranks_per_node=1, cores_per_rank=1, gpus_per_node=0)
    assert (got.ranks, got.time_secs, got.memory, got.partition, got.environment) == (1, None, None, None, {})


def test_the_job_file_wins_over_the_tier_key_by_key() -> None:
    tier = ResourceOptions(
        nodes=4, ranks_per_node=8, time=60, gpus_per_node=8, modules=("a", "b"), environment={"A": "1", "B": "2"}
    )
    section = ResourcesSection(
        tier="LARGE", nodes=2, gpus_per_node=0, modules=("c",), environment={"B": "3"}, sbatch=("--exclusive",)
    )
    got = resolve(section, tier)
    assert (got.tier, got.nodes, got.ranks_per_node, got.ranks, got.gpus_per_node) == ("LARGE", 2, 8, 16, 0)
    assert (got.time, got.modules, got.sbatch) == ("01:00:00", ("c",), ("--exclusive",))
    assert got.environment == {"A": "1", "B": "3"}, "environments are merged, name by name"


def test_a_tier_and_a_job_file_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match="`warning_secs`: 600 is more than half of the time limit 00:10:00"):
        resolve(ResourcesSection(time=10), ResourceOptions(time=60, warning_secs=600))


@pytest.mark.parametrize(
    ("options", "secs"),
    [
        ({}, WARNING_SECS),
        ({"time": 60}, WARNING_SECS),
        ({"time": 4}, 60),
        ({"time": 60, "warning_secs": 300}, 300),
        ({"warning_secs": 300}, 300),
    ],
)
def test_the_warning_leaves_most_of_a_short_limit(options: dict[str, Any], secs: int) -> None:
    assert Resources(tier="T", **options).warns_secs == secs


@pytest.mark.parametrize("tier", ["basic", "1ST", "A-B", "", "A" * 65, "A\n"])
def test_names_of_tiers(tier: str) -> None:
    with pytest.raises(ValidationError, match="should match pattern"):
        ResourcesSection(tier=tier)

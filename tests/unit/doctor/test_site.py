"""The first version of a site file: what is found is in it, what is not is a comment, and load_site reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.doctor.site import Found, draft, first_version, site_finding
from hpc_train.jobs.schedulers.base import NodeKind
from hpc_train.jobs.site.site import Site, load_site
from hpc_train.jobs.site.tiers import Tier, load_tiers

KINDS = (
    NodeKind("cpu", True, 20, 64, 0, "", 1800, None),
    NodeKind("gpu-a", False, 4, 64, 4, "a100", 86400, 8),
    NodeKind("gpu-a", False, 1, 8, 1, "", 86400, 8),
    NodeKind("odd name\n", False, 4, 64, 0, "", None, None),
)


def read(text: str, folder: Path) -> tuple[Site, dict[str, Tier]]:
    folder.chmod(0o700)
    (folder / "site.yaml").write_text(text)
    env = {"HPC_TRAIN_SITE": str(folder / "site.yaml")}
    return load_site(env), load_tiers(env, folder)


def test_what_is_found_is_in_it(tmp_path: Path) -> None:
    found = Found(KINDS, "", "me", ("openmpi/4.1",), "/usr/bin/mpirun", (), "ib0", [("/local", 9)])
    site, tiers = read(draft(found), tmp_path)
    assert dict(site.variables) == {
        "OMPI_MCA_btl_tcp_if_include": "ib0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "HPC_TRAIN_SCRATCH": "/local",
    }
    assert (site.defaults.partition, site.defaults.account, site.defaults.modules) == ("cpu", None, ("openmpi/4.1",))
    assert tiers["BASIC"].options.time == "00:30:00", "what the partition allows"
    assert {"CPU_NODE", "CPU_2_NODES", "A100_4", "A100_8", "GPU_1"} <= set(tiers)
    eight = tiers["A100_8"].options
    assert (eight.nodes, eight.ranks_per_node, eight.cores_per_rank, eight.gpus_per_node) == (2, 4, 16, 4)
    assert tiers["BASIC_GPU"].options.partition == eight.partition == "gpu-a"
    assert not any("ODD" in name for name in tiers)


def test_what_is_not_found_is_a_comment(tmp_path: Path) -> None:
    text = draft(Found(no_kinds="no Slurm"))
    site, tiers = read(text, tmp_path)
    assert (dict(site.variables), site.root, tiers["BASIC"].file.name) == ({}, None, "tiers.yaml")
    for key in ("partition: batch", "account: physics", "modules:", "mpi:", "root:", "scratch:"):
        assert f"# {key}" in text, key
    assert "# no tiers: no Slurm" in text


def test_this_machine(tmp_path: Path) -> None:
    read(first_version({"HPC_TRAIN_BACKEND": "local", "PATH": "/usr/bin"}), tmp_path)


def test_the_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpc_train.jobs.site.site.SITE_FILE", tmp_path / "none.yaml")
    assert site_finding({}).result == "not here"
    tmp_path.chmod(0o700)
    path = tmp_path / "site.yaml"
    path.write_text("roots: /x")
    broken = site_finding({"HPC_TRAIN_SITE": str(path)})
    assert broken.result == "fails" and f"{path}:1: roots: unknown key" in broken.found
    path.write_text("")
    assert site_finding({"HPC_TRAIN_SITE": str(path)}).result == "ok"

"""The site file: what it sets, who wins over it, its mistakes, and who may have written it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from hpc_train.data.staging.folder import choose
from hpc_train.errors import UserError
from hpc_train.jobs.record.job_dirs import root_of
from hpc_train.jobs.site import site as site_module
from hpc_train.jobs.site.site import adopt, load_site, shell_lines
from hpc_train.jobs.site.tiers import load_tiers, tiers_files
from tests.support import LIMIT_SECS, REPOSITORY, environment

TEXT = """\
root: /work/{user}/runs
scratch: /local
mpi: {OMPI_MCA_btl: "self,tcp", NCCL_SOCKET_IFNAME: "ib 0", UCX_TLS: rc}
defaults: {partition: batch, account: site, modules: [openmpi/4.1, "cuda"], environment: {A: "it's"}}
tiers: {BASIC: {about: ours, nodes: 3}, ONLY_HERE: {nodes: 4}}
"""

BAD = """\
root: runs
scratch: /local/{job}
mpi: {PATH: /bin}
defaults: {partition: "a b"}
tiers: {one: {nodes: 1}}
modules: [a]
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    tmp_path.chmod(0o700)
    (tmp_path / "site.yaml").write_text(TEXT)
    return {"HPC_TRAIN_SITE": str(tmp_path / "site.yaml")}


def refused(env: dict[str, str]) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_site(env)
    return str(caught.value).splitlines()


def test_what_it_sets(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "user_name", lambda: "ada")
    site = load_site(env)
    assert (str(site.path), str(site.root)) == (env["HPC_TRAIN_SITE"], "/work/ada/runs")
    assert dict(site.variables) == {
        "OMPI_MCA_btl": "self,tcp",
        "NCCL_SOCKET_IFNAME": "ib 0",
        "UCX_TLS": "rc",
        "HPC_TRAIN_SCRATCH": "/local",
    }
    adopted = {"UCX_TLS": "mine"}
    adopt(environment := {**env, **adopted})
    assert (environment["UCX_TLS"], environment["OMPI_MCA_btl"]) == ("mine", "self,tcp")


def test_the_root_and_the_scratch_give_way_to_what_users_say(env: dict[str, str], tmp_path: Path) -> None:
    assert root_of(tmp_path, env) == tmp_path
    assert root_of(None, {**env, "HPC_TRAIN_ROOT": "/mine"}) == Path("/mine")
    assert str(root_of(None, env)).startswith("/work/")
    assert root_of(None, {}) == Path("runs").absolute()
    ranks = {"HPC_TRAIN_SCRATCH": "/local", "SLURM_TMPDIR": "/slurm"}
    assert choose("/given", ranks) == (Path("/given"), "stage_dir")
    assert choose(None, ranks) == (Path("/local"), "$HPC_TRAIN_SCRATCH")


def test_its_tiers_come_after_the_built_in_ones_and_before_other_files(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tiers.yaml").write_text("defaults: {account: group}\ntiers: {ONLY_HERE: {nodes: 5}}")
    home = tmp_path / "home"
    (home / ".config/hpc_train").mkdir(parents=True)
    (home / ".config/hpc_train/tiers.yaml").write_text("defaults: {environment: {B: 1}}")
    env["HPC_TRAIN_TIERS"] = str(tmp_path / "tiers.yaml")
    assert [path.name for path in tiers_files(env, home)] == ["tiers.yaml", "site.yaml", "tiers.yaml", "tiers.yaml"]
    tiers = load_tiers(env, home)
    basic, other = tiers["BASIC"].options, tiers["ONLY_HERE"].options
    assert (basic.nodes, basic.partition, basic.account) == (3, "batch", "group")
    assert basic.environment == {"A": "it's", "B": "1"}
    assert (other.nodes, other.partition) == (5, None), "defaults are for tiers of the same and earlier files"


def test_all_mistakes_of_all_files_are_told_at_once(env: dict[str, str], tmp_path: Path) -> None:
    path = Path(env["HPC_TRAIN_SITE"])
    path.write_text(BAD)
    told = refused(env)
    for line, words in enumerate(
        [
            "root: 'runs' is not allowed; allowed: a path from the root",
            "scratch: '{job}' is not allowed; allowed: {user}",
            "mpi: 'PATH' is no variable of an MPI; allowed: names that begin with OMPI_",
            "defaults.partition: 'a b'",
            "tiers.one: 'one' is not allowed; allowed: capital letters",
            "modules: unknown key; allowed: defaults, tiers, root, scratch, mpi",
        ],
        start=1,
    ):
        assert any(each.startswith(f"{path}:{line}: {words}") for each in told), told
    assert len(told) == 6
    (tmp_path / "tiers.yaml").write_text("root: /x")
    with pytest.raises(UserError, match=r"(?s)site.yaml:6: .*tiers.yaml:1: root: unknown key"):
        load_tiers({**env, "HPC_TRAIN_TIERS": str(tmp_path / "tiers.yaml")}, tmp_path)


def test_a_file_that_others_may_write_is_not_trusted(env: dict[str, str], tmp_path: Path) -> None:
    path = Path(env["HPC_TRAIN_SITE"])
    path.chmod(0o666)
    assert refused(env) == [
        f"HPC_TRAIN_SITE: {path}: the site file is not trusted: {path} may be written by all users, who would decide "
        f"what the jobs of others run; chmod o-w {path}"
    ]
    path.chmod(0o644)
    tmp_path.chmod(0o777)
    assert f"{tmp_path} may be written by all users" in refused(env)[0]
    tmp_path.chmod(0o1777)
    assert load_site(env).path == path


def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "SITE_FILE", tmp_path / "none.yaml")
    assert load_site({}).path is None
    assert "set it to the site file of your site, or unset it" in refused({"HPC_TRAIN_SITE": "/nowhere/site.yaml"})[0]
    (tmp_path / "none.yaml").write_text("")
    assert load_site({}).path == tmp_path / "none.yaml"


@pytest.mark.parametrize(
    ("before", "modules", "ucx"),
    [("", "openmpi/4.1 cuda", "rc"), ("export HPC_TRAIN_MODULES=x UCX_TLS=mine", "", "mine")],
)
def test_what_the_scripts_source(env: dict[str, str], before: str, modules: str, ucx: str) -> None:
    script = "\n".join(
        [
            "set -euo pipefail",
            "loaded=",
            'module() { shift; loaded="$*"; }',
            before,
            *shell_lines(load_site(env)),
            'printf "%s|" "$loaded" "$UCX_TLS" "$A" "$NCCL_SOCKET_IFNAME"',
        ]
    )
    clean = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", script], env=clean, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{modules}|{ucx}|it's|ib 0|"


def run_programs_sh(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = f"""
set -euo pipefail
fail() {{ echo "train.sh: $1" >&2; exit 2; }}
module() {{ shift; echo "loads $*"; }}
home={shlex.quote(str(folder))}
source {REPOSITORY / "slurm/programs.sh"}
printf '%s|' "$A" "$NCCL_SOCKET_IFNAME" "$HPC_TRAIN_SCRATCH"
"""
    return subprocess.run(
        ["bash", "-c", script], env=environment(**env), capture_output=True, text=True, timeout=LIMIT_SECS, check=False
    )


def test_the_batch_scripts_have_it(env: dict[str, str], tmp_path: Path) -> None:
    done = run_programs_sh(tmp_path, env)
    assert done.stdout == "loads openmpi/4.1 cuda\nit's|ib 0|/local|", done.stderr
    Path(env["HPC_TRAIN_SITE"]).write_text(BAD)
    done = run_programs_sh(tmp_path, env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "modules: unknown key" in done.stderr
    assert done.stderr.endswith("train.sh: the site file cannot be used: see above\n")

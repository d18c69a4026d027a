"""slurm/pack.sh, with scripts in place of srun, sbcast and hpc-train: two nodes with one folder, one without srun."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.packs.archive import plan_pack, sha256_of, write_folder, write_pack
from tests.support import LIMIT_SECS, REPOSITORY, wait_for
from tests.unit.packs.environments import make_venv

PROGRAMS = {
    "srun": """count=1
while [ "$1" != bash ]; do case $1 in --ntasks=*) count=${1#*=} ;; esac; shift; done
trap 'kill $pids' TERM
pids=
for n in $(seq "$count"); do SLURMD_NODENAME=n$n "$@" & pids="$pids $!"; done
code=0
for pid in $pids; do wait "$pid" || code=$?; done
for pid in $pids; do while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done; done
exit "$code"
""",
    "sbcast": 'shift; echo sent >>"$CALLS"; exec cp "$1" "$2"\n',
    "hpc-train": 'echo "$@" >>"$CALLS"\n',
}
TOOLS = (
    *("awk", "bash", "cp", "df", "find", "flock", "getconf", "grep", "head", "mkdir", "od", "printf", "rm", "rmdir"),
    *(
        "sed",
        "seq",
        "sha256sum",
        "sleep",
        "sort",
        "stat",
        "tar",
        "timeout",
        "touch",
        "tr",
        "uname",
        "sh",
        "cat",
        "kill",
    ),
)
SCRIPT = """
set -euo pipefail
me=test record=(--job-dir here) program='' stop=${STOP:-} pack_list=${LIST:-} pack=${FILE:-}
trap 'stop=USR1' USR1
source "$PACK_SH"
hpc-train hello
echo "packages ${PYTHONPATH:-none}"
kill "$keeper" 2>/dev/null || true
wait || true
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    before = os.environ.pop("PYTHONPATH", None)
    try:
        write_pack(folder / "a b.tar", plan_pack(make_venv(folder), print))
    finally:
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return folder / "a b.tar"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(nodes: int = 2, without: str = "", **env: str) -> tuple[int, str]:
        programs = tmp_path / "bin"
        shutil.rmtree(programs, ignore_errors=True)
        programs.mkdir()
        for name in TOOLS:
            if found := shutil.which(name):
                (programs / name).symlink_to(found)
        for name, text in PROGRAMS.items():
            if name not in without.split():
                (programs / name).write_text(f"#!/bin/sh\n{text}")
                (programs / name).chmod(0o700)
        (tmp_path / "nodes").mkdir(exist_ok=True)
        files = {"PACK_SH": str(REPOSITORY / "slurm/pack.sh"), "CALLS": str(tmp_path / "calls"), "PATH": str(programs)}
        own = {"TMPDIR": str(tmp_path / "nodes"), "SLURM_JOB_NUM_NODES": str(nodes), "HOME": str(tmp_path)}
        done = subprocess.run(
            [shutil.which("bash") or "bash", "-c", SCRIPT],
            env={**files, **own, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECS,
        )
        return done.returncode, done.stdout

    return run


def left_of(folder: Path) -> list[Path]:
    return list((folder / "nodes").iterdir())


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_the_ranks_start_from_packs_that_are_gone_in_the_end(run: Run, pack: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/own.py").touch()
    more = write_folder(tmp_path / "more.tar", tmp_path / "more", "packages")
    (tmp_path / "list").write_text(f"{sha256_of(pack)}  {pack}\n{more.sha256}  {tmp_path}/more.tar\n")
    left, others = tmp_path / "nodes/hpc_train-pack-left", tmp_path / "nodes/hpc_train-pack-new"
    for folder in (left, others):
        (folder / "env").mkdir(parents=True)
    os.utime(left, (1, 1))
    code, text = run(LIST=str(tmp_path / "list"))
    assert code == 0, text
    where = f"{tmp_path}/nodes/hpc_train-pack-"
    assert f"test: the environment is {pack}, sent to 2 node(s) in" in text
    assert f"\n{where}" in text and "/env hello\n" in text and f"packages {where}" in text
    assert calls(tmp_path) == ["sent", "sent"]
    wait_for(lambda: left_of(tmp_path) == [others], lambda: left_of(tmp_path))  # it may be another job's, just begun


def test_what_is_not_on_the_nodes_is_told_once(
    run: Run, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = f'case $1 in -f) echo "${{FOUND:-ext2/ext3}}" ;; *) exec {shutil.which("stat")} "$@" ;; esac\n'
    monkeypatch.setitem(PROGRAMS, "stat", stat)
    monkeypatch.setattr("tests.unit.packs.test_pack_sh.TOOLS", [name for name in TOOLS if name != "stat"])
    code, text = run(FILE=str(pack), FOUND="nfs", PYTHONPATH="/my code:/b")
    assert code == 0 and "/env hello\n" in text, text
    assert text.count("is on nfs, which nodes share: ranks start from there, and not from disks of their nodes") == 1
    assert f"test: warning: {tmp_path}/nodes on n" in text
    assert text.count("test: warning: PYTHONPATH goes before the pack: what") == 1
    code, text = run(FILE=str(pack))
    assert code == 0 and "warning" not in text


def test_one_node_needs_no_srun(run: Run, pack: Path, tmp_path: Path) -> None:
    code, text = run(1, "srun sbcast", FILE=str(pack))
    assert code == 0 and "/env hello\npackages none\n" in text, text
    wait_for(lambda: not left_of(tmp_path), lambda: left_of(tmp_path))
    code, text = run(2, "srun sbcast", FILE=str(pack))
    assert code == 2 and "no srun on PATH" in text


def test_a_signal_that_has_come_unpacks_nothing(run: Run, pack: Path, tmp_path: Path) -> None:
    code, text = run(FILE=str(pack), STOP="USR1")
    assert code == 0 and calls(tmp_path) == ["hello"], text


def test_what_is_told_before_a_rank_starts(run: Run, pack: Path, tmp_path: Path) -> None:
    def refused(what: str, **env: str) -> str:
        (tmp_path / "calls").unlink(missing_ok=True)
        code, text = run(**env)
        assert code == 2 and what in text and "hello" not in text, text
        assert calls(tmp_path)[-1] == "record-end --code 2 --job-dir here"
        return text

    content = pack.read_bytes()

    def changed(old: bytes, new: bytes) -> str:
        assert len(old) == len(new) and content.count(old) >= 1
        (tmp_path / "changed.tar").write_bytes(content.replace(old, new, 1))
        return str(tmp_path / "changed.tar")

    machine = os.uname().machine.encode()
    other = "q" * len(machine)
    refused(
        f": the pack was made on {other}, and this is",
        FILE=changed(b'"machine": "' + machine, b'"machine": "' + other.encode()),
    )
    begin = content.index(b'"libc": "') + len(b'"libc": "')
    libc = content[begin : content.index(b'"', begin)]
    refused(": the pack was made with glibc 9", FILE=changed(b'"libc": "' + libc, b'"libc": "' + b"9" * len(libc)))
    refused("is gone: make it again", FILE=str(tmp_path / "nothing.tar"))
    refused("packs.sha256 cannot be read", LIST=str(tmp_path / "packs.sha256"))
    refused("is no pack, or a damaged one", FILE=__file__)
    (tmp_path / "list").write_text(f"{'0' * 64}  {pack}\n")
    refused("the pack is not the one that was made, or its copy is damaged", LIST=str(tmp_path / "list"))
    (tmp_path / "cut.tar").write_bytes(content[: len(content) // 2])
    refused("the pack cannot be unpacked: ", FILE=str(tmp_path / "cut.tar"))
    refused("is no folder that can be written: set HPC_TRAIN_PACK_DIR", FILE=str(pack), TMPDIR=str(tmp_path / "no"))
    refused("HPC_TRAIN_PACK_DIR is 'here'; allowed:", FILE=str(pack), HPC_TRAIN_PACK_DIR="here")
    refused("packs are not for heterogeneous jobs", FILE=str(pack), SLURM_HET_SIZE="2")
    wait_for(lambda: not left_of(tmp_path), lambda: left_of(tmp_path))


def test_a_node_without_space(run: Run, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROGRAMS, "df", "echo head; echo / 100 90 10 90% /\n")
    monkeypatch.setattr("tests.unit.packs.test_pack_sh.TOOLS", [name for name in TOOLS if name != "df"])
    code, text = run(FILE=str(pack))
    assert code == 2 and "has 0 MiB free, and the pack needs" in text
    assert left_of(tmp_path) == []

"""Packs: what is in them, that they run elsewhere, and what is refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.packs.archive import plan_pack, sha256_of, write_folder, write_pack
from hpc_train.packs.cache import pack_of
from hpc_train.packs.contents import ENV
from hpc_train.packs.manifest import read_manifest
from hpc_train.packs.relocation import script_of
from tests.support import LIMIT_SECS
from tests.unit.packs.environments import make_venv, packages_of


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return make_venv(tmp_path)


def told(_: str) -> None:
    raise AssertionError(_)


def unpack(pack: Path, where: Path) -> None:
    """As slurm/pack.sh does."""
    where.mkdir()
    subprocess.run(["tar", "-xf", pack, "-C", where], check=True, timeout=LIMIT_SECS)
    (where / "env/pyvenv.cfg").write_text(f"home = {where}/python/bin\ninclude-system-site-packages = false\n")


def output(*words: object, where: Path) -> str:
    env = {"PATH": f"{where}/env/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{where}/python/lib"}
    done = subprocess.run(list(map(str, words)), env=env, capture_output=True, text=True, timeout=LIMIT_SECS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_pack_runs_where_it_is_unpacked_and_needs_nothing_else(venv: Path, tmp_path: Path) -> None:
    packages = packages_of(venv)
    for name in ("lib/include/eigen/Core", "lib/include/code.py", "numpy/tests/test_a.py", "own/tests/used.py", "x.a"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner/data").write_text("kept")
    (outside / "inner/loop").symlink_to(outside / "inner")
    (packages / "linked").symlink_to(outside / "inner/data")
    (packages / "nowhere").symlink_to(outside / "nothing")
    (packages / "beside").symlink_to(packages / "x.py")
    (packages / "ruff-1.dist-info").mkdir()
    (packages / "ruff-1.dist-info/RECORD").write_text("../../../bin/ruff,,\n")
    (venv / "bin/ruff").touch()

    planned = plan_pack(venv, told)
    written = write_pack(tmp_path / "one.tar", planned)
    assert write_pack(tmp_path / "two.tar", plan_pack(venv, told)) == written
    assert sha256_of(tmp_path / "two.tar") == written.sha256
    assert (tmp_path / "one.tar").stat().st_mode & 0o777 == 0o600
    manifest = read_manifest(tmp_path / "one.tar")
    assert manifest == planned.manifest
    assert (manifest.hpc_train, manifest.prefix, manifest.mpi) == ("0.1.0", str(venv), None)

    venv.rename(tmp_path / "gone")
    where = tmp_path / "node x"
    unpack(tmp_path / "one.tar", where)
    assert output("hpc-train", "a b", where=where) == f"{where}/env a b"
    inside = "import sys, os; print(sys.base_prefix, [p for p in sys.path if p and not p.startswith(sys.argv[1])])"
    assert output("python", "-c", inside, where, where=where) == f"{where}/python []"
    found = where / "env" / packages.relative_to(venv)
    assert (found / "linked").read_text() == "kept" and not (found / "linked").is_symlink()
    assert (found / "beside").readlink() == Path("x.py")
    assert (found / "own/tests/used.py").is_file() and (found / "lib/include/code.py").is_file()
    for gone in ("lib/include/eigen", "numpy/tests", "x.a", "nowhere"):
        assert not (found / gone).exists()
    assert not (where / "env/bin/ruff").exists()


def test_a_checkout_is_packed_as_a_package(venv: Path, tmp_path: Path) -> None:
    packages = packages_of(venv)
    (packages / "hpc_train").rename(tmp_path / "hpc_train")
    (packages / "__editable__.hpc_train-0.1.0.pth").write_text(f"{tmp_path}\n")
    warnings: list[str] = []
    planned = plan_pack(venv, warnings.append)
    names = [one.name for one in planned.members]
    inside = packages.relative_to(venv)
    assert f"{ENV}/{inside}/hpc_train/__init__.py" in names
    assert not [name for name in names if "__editable__" in name]
    assert warnings == []
    edited = {"dir_info": {"editable": True}, "url": "file:///home/my%20project"}
    for name, content in (
        ("my_project-1.0", json.dumps(edited)),
        ("hpc_train-0.1.0", json.dumps({**edited, "url": f"file://{tmp_path}"})),
        ("installed-1.0", json.dumps({**edited, "dir_info": {}})),
        ("damaged-1.0", "[" * 1000),
    ):
        (packages / f"{name}.dist-info").mkdir(exist_ok=True)
        (packages / f"{name}.dist-info/direct_url.json").write_text(content)
    (packages / "__editable__.my_project-1.0.pth").write_text("/home/my project/src\n")
    (packages / "other.pth").write_text("/somewhere/else\n")
    plan_pack(venv, warnings.append)
    outside = ("my_project, installed to be edited in /home/my project,", "/somewhere/else, which a .pth file names,")
    assert warnings == [f"warning: {what} is not in the pack: ranks read it where it is" for what in outside]


def test_what_is_no_environment(venv: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no virtual environment"):
        plan_pack(tmp_path, told)
    config = venv / "pyvenv.cfg"
    config.write_text(
        config.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    )
    with pytest.raises(UserError, match=r"has the packages of .*, too"):
        plan_pack(venv, told)
    config.write_text(config.read_text().replace("= true", "= false"))
    planned = plan_pack(venv, told)
    (packages_of(venv) / "hpc_train/__init__.py").write_text("more than there was" * 100)
    with pytest.raises(UserError, match="has changed meanwhile"):
        write_pack(tmp_path / "one.tar", planned)
    assert not list(tmp_path.glob("*.tar*")) and not list(tmp_path.glob(".*.tmp"))
    (packages_of(venv) / "hpc_train/__init__.py").unlink()
    with pytest.raises(UserError, match="has no hpc_train"):
        plan_pack(venv, told)


def write_tar(path: Path, name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(name)
        info.size, info.type = len(content), kind
        tar.addfile(info, io.BytesIO(content))
    return path


def test_what_is_no_pack(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_manifest(path)
    os.mkfifo(path)
    with pytest.raises(UserError, match="is a FIFO"):
        read_manifest(path)
    path.unlink()
    for content in (b"", b"no tar at all" * 100, b"\0" * 2048):
        path.write_bytes(content)
        with pytest.raises(UserError, match="is no pack"):
            read_manifest(path)
    good = {
        **{"format": 1, "hpc_train": "0.1.0", "python": "3.11.7", "machine": "x86_64", "libc": "2.36", "mpi": None},
        **{"prefix": "/v", "files": 1, "bytes": 5, "contents": "0" * 64, "code": "0" * 32},
    }
    for change, said in (
        ({"format": 2}, "is a pack of format 2"),
        ({"machine": "x86_64\nready"}, "not as hpc-train pack writes it .machine"),
        ({"libc": "2.36; rm"}, "libc"),
        ({"bytes": "many"}, "bytes"),
    ):
        write_tar(path, "manifest.json", json.dumps({**good, **change}).encode())
        with pytest.raises(UserError, match=said):
            read_manifest(path)
    write_tar(path, "manifest.json", json.dumps(good).encode())
    assert read_manifest(path).python == "3.11.7"
    for content in (b"[1]", b"{", b'"a"'):
        with pytest.raises(UserError, match=r"a\.tar: "):
            read_manifest(write_tar(path, "manifest.json", content))
    with pytest.raises(UserError, match="does not begin with"):
        read_manifest(write_tar(path, "other", b""))
    with pytest.raises(UserError, match="does not begin with"):
        read_manifest(write_tar(path, "manifest.json", b"", tarfile.SYMTYPE))
    with pytest.raises(UserError, match="does not begin with"):
        read_manifest(write_tar(path, "manifest.json", b"1" * (1 << 17)))


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (b"#!/v/bin/python3\nimport a\n", False),
        (b"#!/v/bin/python\nimport a\n", False),
        (b"#!/bin/sh\n'''exec' /v/bin/python \"$0\" \"$@\"\n' '''\nimport a\n", False),
        (b"#!/bin/sh\n'''exec' \"/v/bin/python3.11\" \"$0\" \"$@\"\n' '''\nimport a\n", False),
        (b"#!/bin/sh\necho\n", True),
        (b"#!/usr/bin/python3\nimport a\n", True),
        (b"\x7fELF", True),
        (b"", True),
    ],
)
def test_scripts_look_for_python_beside_themselves(given: bytes, same: bool) -> None:
    found = script_of(given, "/v")
    assert (found == given) == same
    if not same:
        assert found.endswith(b"' '''\nimport a\n") and b"/v/" not in found


def test_a_pack_is_made_once_for_an_environment(venv: Path, tmp_path: Path) -> None:
    told: list[str] = []
    first = pack_of(venv, tmp_path / "packs", told.append, tmp_path)
    assert pack_of(venv, tmp_path / "packs", told.append, tmp_path) == first
    assert len(told) == 1 and first[1] == sha256_of(first[0])
    (packages_of(venv) / "new.py").touch()
    second = pack_of(venv, tmp_path / "packs", told.append, tmp_path)
    assert second[0] != first[0] and first[0].is_file()
    second[0].write_bytes(b"cut")
    assert pack_of(venv, tmp_path / "packs", told.append, tmp_path) == second
    (tmp_path / "packs").chmod(0o777)
    with pytest.raises(UserError, match="may be written by all users, so that packs"):
        pack_of(venv, tmp_path / "packs", told.append, tmp_path)


def test_a_folder_of_packages_has_no_owner(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c.py").write_text("1")
    one, two = (write_folder(tmp_path / f"{n}.tar", tmp_path / "a", "packages") for n in range(2))
    assert one == two
    with tarfile.open(tmp_path / "0.tar") as tar:
        assert {(info.uid, info.uname) for info in tar.getmembers()} == {(0, "")}
        assert tar.getnames() == ["packages", "packages/b", "packages/b/c.py"]

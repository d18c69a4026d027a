"""Packs that are kept: which of them no job needs any more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hpc_train.cli.app import app
from hpc_train.packs.cache import note_use, pack_of
from tests.job_dirs import write_job
from tests.unit.packs.environments import make_venv, packages_of

LONG_AGO = time.time() - 1e5


def run(*words: str, code: int = 0) -> Result:
    found = CliRunner().invoke(app, ["pack", *words])
    assert found.exit_code == code, found.output
    return found


def test_packs_go_that_no_job_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "1000")
    assert "has no packs" in run("--clean").stdout
    venv, folder = make_venv(tmp_path), tmp_path / "cache/hpc_train/packs"
    job_dirs = {name: tmp_path / "runs" / name for name in ("failed", "succeeded", "gone", "new")}
    packs = {}
    for name, job_dir in job_dirs.items():
        (packages_of(venv) / f"{name}.py").touch()
        packs[name] = pack_of(venv, folder, lambda _: None, job_dir)[0]
        if name in ("failed", "succeeded"):
            write_job(job_dir, [], {"state": name, "step": 4, "updated": LONG_AGO})
    assert pack_of(venv, folder, print, job_dirs["failed"])[0] == packs["new"]
    left = folder / f".{packs['gone'].name}.0123456789abcdef.tmp"
    (folder / "mine.tar").touch()
    left.touch()
    for path in (left, *(packs[name] for name in ("failed", "succeeded", "gone"))):
        os.utime(path, (LONG_AGO, LONG_AGO))
    said = run("--clean").stdout.splitlines()
    told = {path: next(line for line in said if line.startswith(f"{path} (")) for path in (left, *packs.values())}
    assert f"stays: the job of {job_dirs['failed']} (FAILED) starts from it" in told[packs["failed"]]
    assert "stays: a job was submitted with it within the last hour" in told[packs["new"]]
    assert all(told[path].endswith(": removed") for path in (left, packs["succeeded"], packs["gone"]))
    kept = {packs["failed"].stem: 2, packs["new"].stem: 3}
    stems = [path.name.partition(".")[0] for path in folder.iterdir() if path.name != "mine.tar"]
    assert {stem: stems.count(stem) - 1 for stem in stems} == kept, "packs that stay, with what is noted of them"
    os.utime(packs["new"], (LONG_AGO, LONG_AGO))
    assert f"{packs['new']} (" in run("--clean").stdout and packs["new"].is_file(), "a job that failed has it, too"

    noted = packs["failed"].with_suffix(".json")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    note_use(packs["new"], elsewhere / "one")
    for path in (packs["failed"], packs["new"]):
        os.utime(path, (LONG_AGO, LONG_AGO))
    (job_dirs["failed"] / "status.json").unlink()
    write_job(job_dirs["failed"], [], {"state": "succeeded", "step": 4, "updated": LONG_AGO})
    noted.write_text("{")
    elsewhere.rmdir()
    said_then = run("--clean").stdout
    assert f"stays: {noted} cannot be read (is not JSON)" in said_then
    assert f"stays: the job of {elsewhere / 'one'}, which cannot be seen here, may start from it" in said_then

    folder.chmod(0o777)
    assert "may be written by all users" in run("--clean", code=2).stderr


@pytest.mark.parametrize("words", [(), ("a.tar", "--clean"), ("--clean", "--venv", "v")])
def test_one_thing_is_asked_for(words: tuple[str, ...]) -> None:
    assert "--clean" in run(*words, code=2).stderr

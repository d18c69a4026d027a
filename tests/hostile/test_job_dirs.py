"""Job-dirs that others have prepared: each is listed by itself, none stops a command, and no other job is cancelled."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import UserError
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.model.job_model import job_in_job_dir
from tests.hostile.commands import contents_of, faults_of, run_commands
from tests.support import run_program, wait_for
from tests.unit.jobs.submissions import a_submission

HUGE = "9" * 400
Maker = Callable[[Path], object]


def holds(content: str | bytes) -> Maker:
    data = content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    return lambda path: path.write_bytes(data)


def _link(target: str) -> Maker:
    return lambda path: path.symlink_to(target)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 100 << 30)


NO_FILES: dict[str, Maker] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "zero": _link("/dev/zero"),
    "link": _link("{outside}/victim.json"),
    "loop": _link("{name}"),
    "sparse": _sparse,
}
NO_JSON: dict[str, Maker] = {
    "deep": holds("[" * 200_000),
    "deep_object": holds('{"a":' * 200_000),
    "aliases": holds("['*" + "a" * 200_000),
    "many_digits": holds('{"state": "running", "step": ' + "9" * 5000 + "}"),
    "half": holds('{"state": "run'),
    "list": holds('["running"]'),
    "binary": holds(bytes(range(256)) * 50),
    "utf16": holds('{"state": "running"}'.encode("utf-16")),
    "empty": holds(""),
    "large": holds('{"state": "running", "x": "' + "x" * (17 << 20) + '"}'),
}


def status(**fields: Any) -> Maker:
    return holds(json.dumps({"state": "running", "job_id": "7", **fields}))


ODD_STATUS: dict[str, Maker] = {
    "types": status(state=3, step="many", max_steps=[], loss={}, evaluation=[1], exports={"a": 1}, error=7, ranks=1.5),
    "long_numbers": holds(
        f'{{"state": "running", "step": {HUGE}, "loss": -{HUGE}, "started": {HUGE}, "updated": -{HUGE}, '
        f'"secs_left": {HUGE}, "examples_per_sec": {HUGE}, "ranks": {HUGE}, "pid": {HUGE}, "requeues": {HUGE}, '
        f'"evaluation": {{"loss": {HUGE}, "step": {HUGE}}}, "exit_code": {HUGE}, "restarts": {HUGE}}}'
    ),
    "not_finite": holds('{"state": "running", "loss": NaN, "secs_left": 1e999, "started": -1e999, "step": Infinity}'),
    "nested": status(error={"message": {"a": [1]}, "rank": "x", "lines": [{}]}, evaluation={"a": {"b": 1}}),
    "ended": status(state="failed", exit_code=-5, error={"message": "x" * 100_000, "lines": ["y" * 100_000] * 9}),
    "process": status(job_id=None, host=socket.gethostname(), pid=1, process_start=-1, boot_id=4),
}
ODD_SUBMISSION: dict[str, dict[str, Any]] = {
    "option": {"job_id": "-uroot"},
    "options": {"job_id": "--user=root"},
    "all": {"job_id": "7 8 9"},
    "digits": {"job_id": "٧"},
    "newline": {"job_id": "7\n8"},
    "number": {"job_id": 7},
    "token": {"token": "-x"},
    "name": {"name": "../../up"},
    "entry": {"entry": "../../outside.yaml"},
    "root": {"entry": "/etc/passwd"},
    "settings": {"settings": ["a=1"] * 20_000},
    "resources": {"resources": {"tier": "BASIC", "nodes": 10**30}},
    "submitted": {"submitted": 1e300},
    "backend": {"backend": "-x"},
    "folder": {"folder": {"device": -1, "inode": "x"}},
}


def make_job_dir(root: Path, name: str, **fields: Any) -> Path:
    """A job that runs, as its records say."""
    job_dir = root / name
    (job_dir / "logs").mkdir(parents=True)
    a_submission(name=name, folder=FolderIdentity.of(job_dir), **fields).save(job_dir)
    (job_dir / "status.json").write_text(json.dumps({"state": "running", "step": 3, "job_id": "7"}))
    (job_dir / "logs/job.out").write_text("hello\n")
    (job_dir / "metrics.jsonl").write_text('{"kind": "start", "step": 0, "time": 1.0}\n')
    return job_dir


def put(outside: Path, path: Path, maker: Maker) -> None:
    """Puts what `maker` makes into the place of `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    maker(path)
    if path.is_symlink():
        target = os.readlink(path).format(outside=outside, name=path.name)
        path.unlink()
        path.symlink_to(target)


def corpus(root: Path, outside: Path) -> dict[str, str]:
    """Job-dirs under `root`, by name: what is wrong with each; "unreadable" those of which nothing is known."""
    outside.mkdir()
    (outside / "victim.json").write_text('{"state": "succeeded", "secret": "of the victim"}')
    (outside / "folder").mkdir()
    found: dict[str, str] = {}

    def add(name: str, kind: str, maker: Maker, *files: str) -> None:
        job_dir = make_job_dir(root, name)
        for file in files:
            put(outside, job_dir / file, maker)
        found[name] = kind

    for name, maker in (NO_FILES | NO_JSON).items():
        add(f"status_{name}", "unreadable", maker, "status.json")
        add(f"submission_{name}", "unreadable", maker, "submission.json")
        add(f"logs_{name}", "readable", maker, "logs/job.out", "cancelled.json")
        add(f"job_{name}", "readable", maker, "job.yaml")
        records = ("metrics.jsonl", "lock.json", "environment.json", "early_stop.json", "warm_start.json")
        add(f"records_{name}", "readable", maker, *records)
    for name, maker in ODD_STATUS.items():
        add(f"odd_{name}", "readable", maker, "status.json")
    for name, fields in ODD_SUBMISSION.items():
        job_dir = make_job_dir(root, f"given_{name}")
        text = json.dumps({**json.loads((job_dir / "submission.json").read_text()), **fields})
        (job_dir / "submission.json").write_text(text)
        found[job_dir.name] = "unreadable"
    for folder in ("checkpoints", "logs", "export", "eval"):
        add(f"{folder}_is_a_link", "readable", _link("{outside}/folder"), folder)
        add(f"{folder}_is_a_fifo", "readable", os.mkfifo, folder)
    return found


@pytest.fixture
def stubs(tmp_path: Path) -> dict[str, str]:
    """An environment with commands of Slurm that note how they were called and know nothing."""
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "scancel", "squeue", "scontrol", "sacct", "sinfo"):
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\n')
        path.chmod(0o755)
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "HPC_TRAIN_ROOT": str(tmp_path / "runs")}
    return {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", **state}


def test_each_bad_job_dir_is_listed_by_itself(tmp_path: Path, stubs: dict[str, str]) -> None:
    root, outside = tmp_path / "runs", tmp_path / "outside"
    kinds = corpus(root, outside)
    (root / "good").mkdir()
    a_submission(name="good", folder=FolderIdentity.of(root / "good")).save(root / "good")
    (root / "good/status.json").write_text('{"state": "succeeded", "job_id": "7", "exit_code": 0}')
    before = contents_of(outside)

    listed, table = run_commands([["list", "--json"], ["list"]], tmp_path, stubs)

    assert not faults_of([listed, table])
    assert (listed.code, table.code) == (0, 0), listed.err
    jobs = {job["name"]: job for job in map(json.loads, listed.out.splitlines())}
    assert set(jobs) >= {*kinds, "good"} - {"given_name"}
    assert jobs["good"]["state"] == "SUCCEEDED"
    wrong = []
    for name, kind in kinds.items():
        if (jobs[name]["state"] == "UNREADABLE") != (kind == "unreadable"):
            wrong.append(f"{name}: {jobs[name]['state']}: {jobs[name]['reason']}")
    assert not wrong, "\n".join(wrong)
    assert contents_of(outside) == before


def test_commands_on_many_jobs_take_bad_ones_and_nothing_outside_is_counted_or_removed(
    tmp_path: Path, stubs: dict[str, str]
) -> None:
    root, outside = tmp_path / "runs", tmp_path / "outside"
    corpus(root, outside)
    (root / "link").symlink_to(outside)
    (root / "good/checkpoints/step-00000001.damaged").mkdir(parents=True)
    a_submission(name="good").save(root / "good")
    (root / "good/status.json").write_text('{"state": "succeeded", "job_id": "7", "exit_code": 0}')
    before = contents_of(outside)
    everything = [["list", "--sort", "step", "--columns", "state,evaluation,reason,exit_code"], ["du", "--json"]]
    everything += [["report", root, "--markdown"], ["clean", "--yes"]]
    everything += [["clean", "--yes", "--jobs", "good"]]

    done = run_commands(everything, tmp_path, stubs)

    assert not faults_of(done)
    assert [one.code for one in done[:3]] == [0] * 3, [one.err for one in done[:3]]
    assert contents_of(outside) == before
    assert not (root / "good").exists() and (root / "link").is_symlink()
    assert not (tmp_path / "calls").exists(), "Slurm was asked to do something"


def test_no_command_breaks_on_a_bad_job_dir(tmp_path: Path, stubs: dict[str, str]) -> None:
    root, outside = tmp_path / "runs", tmp_path / "outside"
    kinds = corpus(root, outside)
    before, commands = contents_of(outside), []
    for name in kinds:
        of_job = name.startswith(("status", "submission", "logs", "odd", "given"))
        verbs = [["describe"], ["cancel"]] if of_job else [["report"], ["checkpoints"]]
        verbs += [["logs", "-n", "3"]] if name.startswith(("logs", "status")) else []
        commands += [[*verb, root / name] for verb in verbs]

    done = run_commands(commands, tmp_path, stubs)

    assert len(done) == len(commands)
    assert not faults_of(done)
    assert contents_of(outside) == before
    assert not (tmp_path / "calls").exists(), "Slurm was asked to do something"
    said = {(Path(one.args[-1]).name, one.args[0]): one for one in done}
    for name, kind in kinds.items():
        if kind == "unreadable":
            assert said[name, "cancel"].code == 2, said[name, "cancel"].err
            assert "is no record of a job" in said[name, "cancel"].err
    assert not [one for one in done if "of the victim" in one.out + one.err], "a link was followed"


BUILTIN_JOB = """\
name: a
model: {builtin: linear, schema: schema.yaml}
data: {train: {shards: a.h5}, eval: {shards: b.h5}}
train: {max_steps: 1}
"""


@pytest.mark.parametrize("maker", (NO_FILES | NO_JSON).values(), ids=NO_FILES | NO_JSON)
def test_a_schema_that_was_prepared_is_no_schema(tmp_path: Path, maker: Maker) -> None:
    """That of a built-in model, which evaluate and export read beside job.yaml."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/victim.json").write_text('{"secret": "of the victim"}')
    (tmp_path / "job").mkdir()
    (tmp_path / "job/job.yaml").write_text(BUILTIN_JOB)
    put(tmp_path / "outside", tmp_path / "job/schema.yaml", maker)
    with pytest.raises(UserError, match=rf"^{re.escape(str(tmp_path))}/job/schema\.yaml") as caught:
        job_in_job_dir(JobDir(tmp_path / "job").job())
    assert "secret" not in str(caught.value) and len(str(caught.value)) < 5000


def test_an_option_for_a_number_cancels_nothing(tmp_path: Path, stubs: dict[str, str]) -> None:
    for name, number in {"user": "-uroot", "words": "1 2", "all": "--state=RUNNING"}.items():
        job_dir = make_job_dir(tmp_path / "runs", name, backend="slurm", job_id="7")
        for file in ("submission.json", "status.json"):
            (job_dir / file).write_text((job_dir / file).read_text().replace('"7"', json.dumps(number)))
        by_hand = tmp_path / "runs" / f"{name}_by_hand"
        by_hand.mkdir()
        fields = {"state": "running", "job_id": number, "folder": asdict(FolderIdentity.of(by_hand))}
        (by_hand / "status.json").write_text(json.dumps(fields))
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())

    done = run_commands([["cancel", name] for name in names], tmp_path, stubs)

    assert not faults_of(done)
    assert {one.code for one in done} == {2, 12}  # 12: started on another host, as it says
    assert not (tmp_path / "calls").exists()


def test_a_number_that_somebody_else_may_have_put_there_cancels_nothing(tmp_path: Path, stubs: dict[str, str]) -> None:
    """A job that sbatch was given by hand is known by its status.json alone."""
    root = tmp_path / "runs"
    (tmp_path / "bin/scontrol").write_text("#!/bin/sh\necho JobId=7 JobState=RUNNING Restarts=0 Command=x WorkDir=/\n")
    for name in ("mine", "older", "copied", "open"):
        (root / name).mkdir(parents=True)
        folder = {"folder": asdict(FolderIdentity.of(root / ("mine" if name == "copied" else name)))}
        fields = {"state": "running", "job_id": "7", **({} if name == "older" else folder)}
        (root / name / "status.json").write_text(json.dumps(fields))
    (root / "open").chmod(0o777)

    done = run_commands([["cancel", name] for name in ("older", "copied", "open", "mine")], tmp_path, stubs)

    assert not faults_of(done)
    assert [one.code for one in done[:3]] == [2, 2, 2], [one.err for one in done]
    assert "does not record that it is the job-dir of job 7" in done[0].err
    assert "to cancel it by its number: scancel 7" in done[0].err
    assert "is a copy of the job-dir of job 7, not the job itself; nothing is cancelled" in done[1].err
    assert "may be written by all users, so that job 7 may be another one" in done[2].err
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("scancel")]
    assert calls == ["scancel -- 7"], done[3].err


PROGRAM = """
import pathlib, time
pathlib.Path("begun").touch()
while True:
    time.sleep(1)
"""


def test_a_copy_is_not_the_job_and_a_job_dir_that_was_renamed_is(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HPC_TRAIN_ROOT": str(tmp_path / "runs")}
    (tmp_path / "job").mkdir()
    (tmp_path / "job/main.py").write_text(PROGRAM)
    (tmp_path / "job/job.yaml").write_text("name: p\nmodule: main\nresources: {cores_per_rank: 1}\n")

    def command(*words: object, code: int = 0) -> str:
        args = [sys.executable, "-m", "hpc_train", *map(str, words)]
        done = run_program(args, tmp_path, **env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def state(name: str) -> dict[str, Any]:
        return json.loads(command("describe", name, "--json"))

    command("submit", "job/job.yaml", "--backend", "local", "--name", "a")
    runs = tmp_path / "runs"
    try:
        wait_for((runs / "a/code/begun").exists, "it runs")
        shutil.copytree(runs / "a", runs / "b")

        refused = command("cancel", "b", code=2)

        assert "b: is a copy of the job-dir of job 1, not the job itself; nothing is cancelled" in refused
        assert (state("b")["state"], state("a")["state"]) == ("LOST", "RUNNING")
        assert state("b")["reason"] == "a copy of the job-dir of job 1, not the job itself"
        assert state("1")["job_dir"] == str(runs / "a"), "the number is the job's"
        assert not (runs / "b/cancelled.json").exists()
        (runs / "a").rename(runs / "c")  # its runner finds that its job-dir is gone, and ends the ranks; or this does
        assert "cancel" in command("cancel", "c")
    finally:
        for name in ("a", "c"):
            if (runs / name).exists():
                run_program([sys.executable, "-m", "hpc_train", "cancel", name], tmp_path, **env)
    wait_for(lambda: not list((tmp_path / "state").rglob("ticket-*.json")), "its runner has left")

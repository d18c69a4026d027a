"""What `hpc-train submit` refuses, on a real Slurm: all is told, nothing is queued, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_train.jobdir.slow_nodes import add_slow_node
from tests.slurm.back_ends import BackEnd, Running, make_program
from tests.slurm.cluster import SlurmCluster, missing_requirements
from tests.slurm.jobs import TRAIN_SH, make_folder, newest_step, not_here, set_step_secs, write_job
from tests.support import wait_for

LESS_PATIENT = """
from hpc_train.__main__ import main
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue

slurm_queue.SUBMIT_SECS, slurm_queue.RETRY_SECS = 1.0, 0.5
main()
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackEnd]:
    """A cluster whose controller may be stopped."""
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with SlurmCluster() as cluster, BackEnd(tmp_path_factory.mktemp("submit"), cluster) as found:
        yield found


@pytest.fixture
def job_file(slurm: BackEnd, tmp_path: Path) -> Path:
    return make_program(tmp_path / "code")


def queue(slurm: BackEnd) -> list[str]:
    """The names of all jobs that Slurm knows."""
    assert slurm.cluster is not None
    return slurm.cluster.run(["squeue", "--noheader", "--states=all", "--format=%j"]).split()


def refused(slurm: BackEnd, *words: object, code: int = 2, **env: str) -> str:
    """What `hpc-train submit WORDS` complains of; checks that nothing is queued, and that no file was written."""
    jobs, files = queue(slurm), sorted(slurm.folder.rglob("*"))
    told = slurm.run("submit", *words, code=code, **env)
    assert told.out == ""
    assert queue(slurm) == jobs
    assert sorted(slurm.folder.rglob("*")) == files
    return told.err


def test_resources_that_the_cluster_does_not_have(slurm: BackEnd, job_file: Path) -> None:
    def wanting(*settings: str) -> str:
        return refused(slurm, job_file, *(f"--set=resources.{setting}" for setting in settings))

    assert "there is no tier 'BASICS'; did you mean" in wanting("tier=BASICS")
    assert "gpus_per_node: 1 GPU wanted on each node, but nodes of partition 'test' have none" in wanting(
        "gpus_per_node=1"
    )
    assert "time: 00:20:00 is above the limit of partition 'short', 00:10:00; set `time: 00:10:00` at most" in wanting(
        "partition=short", "time=20"
    )
    assert "partition: 'tests' is not one of this cluster; did you mean `test`?" in wanting("partition=tests")
    several = wanting("nodes=3", "cores_per_rank=4", "gpus_per_node=8").splitlines()
    assert [re.match(r"hpc-train: error: resources: (\w+)", line)[1] for line in several] == [  # type: ignore[index]
        "nodes",
        "ranks_per_node",
        "gpus_per_node",
    ]


def test_names_and_places(slurm: BackEnd, job_file: Path, tmp_path: Path) -> None:
    assert "'2fast' is not allowed as the name of a job" in refused(slurm, job_file, "--name", "2fast")
    assert "'a b' is not allowed" in refused(slurm, job_file, "--job-dir", tmp_path / "a b")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/notes").touch()
    assert f"{tmp_path}/taken: the name is in use" in refused(slurm, job_file, "--job-dir", tmp_path / "taken")
    inside = refused(slurm, job_file, "--job-dir", job_file.parent / "out")
    assert "the job-dir lies inside" in inside
    (job_file.parent / "big.bin").write_bytes(bytes(3 << 20))
    large = refused(slurm, job_file, "--max-code-size", "2M")
    assert "big.bin" in large
    assert ".gitignore" in large
    file = tmp_path / "file"
    file.touch()
    assert "is not a folder" in refused(slurm, job_file, "--root", file)


def test_all_mistakes_are_told_at_once(slurm: BackEnd, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "model.py").write_text("def build(params):\n    return None\n")
    shutil.rmtree(folder / "data")

    settings = ("--set=resources.partition=short", "--set=resources.nodes=2")
    told = refused(slurm, folder / "job.yaml", "--name", "1st", *settings)

    for what in (
        "has no function build_model; what it defines: build",
        "matches no file",
        "nodes: 2 wanted",
        "'1st' is not",
    ):
        assert what in told
    told = refused(slurm, folder / "job.yaml", "--set=resources.tier=NONE")
    assert "matches no file" in told
    assert "there is no tier" in told
    assert "not Python" in refused(slurm, _with(folder / "model.py", "def build_model(:\n").parent / "job.yaml")
    assert "module: there is no module nowhere" in refused(
        slurm, make_program(tmp_path / "other"), "--set=module=nowhere"
    )


def _with(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_sbatch_absent_and_sbatch_refusing(slurm: BackEnd, job_file: Path) -> None:
    assert slurm.cluster is not None
    told = refused(slurm, job_file, "--backend", "slurm", PATH=slurm.path_without_slurm())
    assert "sbatch is not on PATH" in told
    assert "--backend local" in told
    told = refused(slurm, job_file, "--set=resources.sbatch=[--licenses=nosuch]")
    assert (
        told == "hpc-train: error: sbatch refuses the job: Batch job submission failed: Invalid license specification\n"
    )


def test_a_job_goes_on_without_the_node_that_it_has_named_slow(slurm: BackEnd) -> None:
    """Beside those that its user leaves out; and with it where no other one is left."""
    assert slurm.cluster is not None
    job = slurm.submit("slow_node", "--until", "{job_dir}/go")
    slurm.run("cancel", job.name)
    assert job.end() == ("CANCELLED", 11)
    for node in ("n1", "elsewhere"):
        add_slow_node(job.job_dir, node, {"rank": 0})
    told = slurm.run("resume", job.name, "--json")
    assert "without n1, named slow; to have all nodes remove " in told.err
    assert "elsewhere: named slow, but not a node of this cluster\n" in told.err
    job = slurm.job(job.name, told.json()[0]["job_id"])
    job.wait_until_it_says("rank 0 of")
    assert slurm.cluster.fields(job.number)["NodeList"] == "n2"
    slurm.run("cancel", job.name)
    assert job.end() == ("CANCELLED", 11)

    job.let_go()
    told = slurm.run("resume", job.name, "--json", "--set=resources.sbatch=[--exclude=n2]")
    assert re.search("n1: named slow, but without, sbatch refuses the job: .*; it is submitted as if not", told.err)
    job = slurm.job(job.name, told.json()[0]["job_id"])
    assert job.end() == ("SUCCEEDED", 0)
    assert slurm.cluster.fields(job.number)["NodeList"] == "n1"


def test_an_answer_that_got_lost_is_found_in_the_queue(slurm: BackEnd, job_file: Path, tmp_path: Path) -> None:
    """sbatch queues the job and then tells of a time-out: the job is found by its token, and not queued again."""
    real = shutil.which("sbatch", path=slurm.env["PATH"])
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/sbatch"
    stub.write_text(
        f'#!/bin/sh\n{real} "$@" >/dev/null\n'
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2\nexit 1\n"
    )
    stub.chmod(0o755)

    path = os.pathsep.join([str(tmp_path / "bin"), slurm.env["PATH"]])
    (told,) = slurm.run("submit", job_file, "--name", "lost_answer", "--json", PATH=path).json()

    assert queue(slurm).count("lost_answer") == 1
    assert slurm.job("lost_answer", told["job_id"]).end() == ("SUCCEEDED", 0)


def test_a_controller_that_is_down_gets_the_job_once(slurm: BackEnd, job_file: Path) -> None:
    """It stops before the submission, and comes back while that is tried again.

    Meanwhile jobs stand as their job-dirs say, nothing is cancelled, and submissions that are interrupted, or have less
    patience, leave nothing behind.
    """
    cluster = slurm.cluster
    assert cluster is not None
    hasty = cluster.root / "hasty.conf"  # clients give up after 1 s and not after 9
    hasty.write_text((cluster.root / "slurm.conf").read_text() + "MessageTimeout=2\n")
    env = {"SLURM_CONF": str(hasty)}
    less_patient = [sys.executable, "-c", LESS_PATIENT, "submit", str(job_file), "--name", "given_up"]
    cluster.stop_controller()
    try:
        with (
            slurm.start("submit", job_file, "--name", "patient", "--json", **env) as submitting,
            slurm.start("submit", job_file, "--name", "interrupted", **env) as interrupted,
            Running(less_patient, slurm.folder, {**slurm.env, **env}) as giving_up,
            slurm.start("describe", _known(slurm), "--json", **env) as describing,
            slurm.start("cancel", _known(slurm), **env) as cancelling,
        ):
            interrupted.wait_until_it_says("trying again")
            interrupted.interrupt()
            interruption, gave_up, status, refusal = (
                command.end() for command in (interrupted, giving_up, describing, cancelling)
            )
            submitting.wait_until_it_says("trying again")
            assert [path.name for path in slurm.root.iterdir() if (path / "job.sh").exists()].count("patient") == 1
            cluster.start_controller()
            done = submitting.end()
    finally:
        if not cluster.has_controller():
            cluster.start_controller()
    for given_up in (interruption, gave_up):
        assert (given_up.code, "; the job is not queued" in given_up.err) == (12, True), given_up.err
    assert "Slurm does not answer" in status.json()[0]["note"]
    assert (refusal.code, "not cancelled: Slurm does not answer" in refusal.err) == (12, True)
    assert not (slurm.root / "interrupted").exists()
    assert not (slurm.root / "given_up").exists()
    assert done.code == 0, done.err
    assert [name for name in queue(slurm) if name in ("patient", "interrupted", "given_up")] == ["patient"]
    assert slurm.job("patient", done.json()[0]["job_id"]).end() == ("SUCCEEDED", 0)


def _known(slurm: BackEnd) -> str:
    """A job whose end its job-dir does not tell."""
    job_dir = slurm.root / "unknown_end"
    if not job_dir.exists():
        shutil.copytree(slurm.root / "lost_answer", job_dir)
        make_its_own(job_dir)
        (job_dir / "status.json").unlink()
    return job_dir.name


def make_its_own(job_dir: Path) -> None:
    """A copy counts as the job's own folder."""
    path, folder = job_dir / "submission.json", job_dir.stat()
    fields = json.loads(path.read_text())
    fields["folder"] |= {"device": folder.st_dev, "inode": folder.st_ino}
    path.write_text(json.dumps(fields))


def test_what_a_dry_run_prints_is_a_script_that_sbatch_takes(slurm: BackEnd, tmp_path: Path) -> None:
    """And that runs from a place with a hostile name, with an environment that no shell looks at."""
    odd = tmp_path / 'it\'s 100% "ö" $HOME #1'
    job_file = make_program(odd / "code", environment={"ODD": "a 'b' \"c\" $(touch nope) `d`"}, time=5)
    (odd / "code/trainer/words.py").write_text("import os\n\nWORD = os.environ['ODD']\n")

    script = slurm.run("submit", job_file, "--dry-run", "--job-dir", odd / "runs/odd").out

    assert not (odd / "runs").exists()
    (tmp_path / "job.sh").write_text(script)
    shellcheck = shutil.which("shellcheck", path=slurm.env["PATH"])
    if shellcheck is None:
        not_here("shellcheck is not beside this Python: run make setup first")
    subprocess.run([shellcheck, tmp_path / "job.sh"], check=True, timeout=600)
    assert slurm.cluster is not None
    slurm.cluster.run(["sbatch", "--test-only", str(tmp_path / "job.sh")])

    modules = {"BASH_FUNC_module%%": '() { echo "module $*"; }'}
    settings = ["--set=resources.modules=[openmpi/4.1, cuda/12.4]", "--set=resources.ranks_per_node=2"]
    done = slurm.run("submit", job_file, *settings, "--wait", "--job-dir", odd / "runs/odd", **modules)
    for line in ("module load openmpi/4.1 cuda/12.4", "rank 1 of 2 says a 'b' \"c\" $(touch nope) `d`"):
        assert line in done.out.splitlines(), done.out
    assert (odd / "runs/odd/logs/job.out").read_text() in done.out
    assert "rank 1 of 2" in slurm.run("logs", odd / "runs/odd", "--rank", 1).out
    assert not list(tmp_path.rglob("nope"))
    told = slurm.run("submit", job_file, settings[0], "--wait", "--job-dir", odd / "runs/without", code=2)
    assert "the job's tier has modules, but there is no command called module here" in told.out


def test_a_job_is_found_by_its_number_from_anywhere(slurm: BackEnd, job_file: Path, tmp_path: Path) -> None:
    (told,) = slurm.run("submit", job_file, "--job-dir", tmp_path / "far/away", "--json", "--wait").json()[:1]

    found = slurm.run("describe", told["job_id"], "--json", cwd=tmp_path).json()[0]

    assert (found["name"], found["state"], found["job_dir"]) == ("away", "SUCCEEDED", str(tmp_path / "far/away"))


def test_a_job_that_sbatch_was_given_by_hand_is_known_too(slurm: BackEnd, tmp_path: Path) -> None:
    assert slurm.cluster is not None
    folder = make_folder(tmp_path / "by hand")
    write_job(folder, max_steps=100_000, save_checkpoints_steps=20)
    set_step_secs(folder, 0.05)
    one_rank = ["--nodes=1", "--ntasks-per-node=1", f"--output={folder}/job.out"]
    number = slurm.cluster.sbatch([*one_rank, TRAIN_SH, "job.yaml"], folder, slurm.env)
    wait_for(lambda: newest_step(folder / "runs/tiny") >= 0, "it saves")

    at = {"HPC_TRAIN_ROOT": str(folder / "runs")}
    assert re.search(rf"(?m)^tiny +{number} +RUNNING +[\d,]+/100,000 ", slurm.run("list", **at).out)
    (status,) = slurm.run("describe", number, "--json", **at).json()
    assert (status["name"], status["backend"], status["kind"], status["ranks"]) == ("tiny", "slurm", "model", 1)
    assert "checkpoint " in slurm.run("logs", "tiny", **at).out
    assert f"cd {shlex.quote(str(folder))} && sbatch " in slurm.run("resume", "tiny", code=2, **at).err
    assert slurm.run("cancel", number, **at).out == "tiny: cancelled (it was RUNNING)\n"
    assert slurm.run("wait", "tiny", code=11, **at).err.startswith("hpc-train: tiny: CANCELLED (cancelled by ")


def test_accounting_knows_what_the_controller_has_forgotten(slurm: BackEnd, tmp_path: Path) -> None:
    """A stand-in for sacct: this cluster has no accounting."""
    job_dir = slurm.root / "accounted"
    shutil.copytree(slurm.root / "lost_answer", job_dir)
    make_its_own(job_dir)
    (job_dir / "status.json").unlink()
    text = (job_dir / "submission.json").read_text()
    (job_dir / "submission.json").write_text(re.sub(r'"job_id": "\d+"', '"job_id": "99999"', text))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sacct").write_text("#!/bin/sh\necho 'CANCELLED by 0|0:15'\n")
    (tmp_path / "bin/sacct").chmod(0o755)

    assert slurm.run("describe", "accounted", "--json").json()[0]["state"] == "LOST"
    path = os.pathsep.join([str(tmp_path / "bin"), slurm.env["PATH"]])
    assert slurm.run("describe", "accounted", "--json", PATH=path).json()[0]["state"] == "CANCELLED"


def test_tiers_say_why_they_cannot_be_had_and_a_pipe_has_no_colours(slurm: BackEnd, tmp_path: Path) -> None:
    (tmp_path / "tiers.yaml").write_text(
        "tiers: {SMALL: {nodes: 1, partition: short}, LONG: {nodes: 2, time: 7-0:00:00}}\n"
    )
    told = slurm.run("tiers", HPC_TRAIN_TIERS=str(tmp_path / "tiers.yaml")).out
    assert "\x1b" not in told
    assert re.search(r"(?m)^PREMIUM_1 +nodes: 4 wanted, but partition 'test' has 2 nodes", told)
    assert not re.search(r"(?m)^(SMALL|LONG|BASIC) +\w+:", told)

    coloured = subprocess.run(
        ["script", "-qec", "hpc-train list", "/dev/null"],
        env={**slurm.env, "TERM": "xterm-256color"},
        cwd=slurm.folder,
        capture_output=True,
        text=True,
        timeout=600,
    ).stdout
    assert "\x1b[32mSUCCEEDED" in coloured
    assert "\x1b" not in slurm.run("list").out

"""What `hpc-train submit` refuses, on a real Slurm: all is told, nothing is queued, and nothing is left behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_train.errors import SchedulerError
from hpc_train.jobs import slurm_queue
from tests.slurm.back_ends import BackEnd, make_program
from tests.slurm.cluster import SlurmCluster, missing_requirements
from tests.slurm.jobs import make_folder, not_here, wait_until

DOWN_SECS = 60.0


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackEnd]:
    """A cluster whose controller may be stopped."""
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with SlurmCluster() as cluster:
        yield BackEnd(tmp_path_factory.mktemp("submit"), cluster)


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

    told = refused(slurm, folder / "job.yaml", "--set=resources.partition=short", "--set=resources.nodes=2")

    for what in ("has no function build_model; what it defines: build", "matches no file", "nodes: 2 wanted"):
        assert what in told
    assert "not Python" in refused(slurm, _with(folder / "model.py", "def build_model(:\n").parent / "job.yaml")
    assert "module: there is no module nowhere" in refused(
        slurm, make_program(tmp_path / "other"), "--set=module=nowhere"
    )


def _with(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_sbatch_absent_and_sbatch_refusing(slurm: BackEnd, job_file: Path) -> None:
    assert slurm.cluster is not None
    without = os.pathsep.join(
        path for path in slurm.env["PATH"].split(os.pathsep) if not (Path(path) / "sbatch").exists()
    )
    told = refused(slurm, job_file, "--backend", "slurm", PATH=without)
    assert "sbatch is not on PATH" in told
    assert "--backend local" in told
    told = refused(slurm, job_file, "--set=resources.sbatch=[--licenses=nosuch]")
    assert (
        told == "hpc-train: error: sbatch refuses the job: Batch job submission failed: Invalid license specification\n"
    )


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


def test_a_controller_that_is_down_gets_the_job_once(
    slurm: BackEnd, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops before the submission, and comes back while that is tried again.

    Meanwhile jobs stand as their job-dirs say, nothing is cancelled, and a submission with less patience gives up.
    """
    cluster = slurm.cluster
    assert cluster is not None
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slurm_queue, "SUBMIT_SECS", 1.0)
    monkeypatch.setattr(slurm_queue, "RETRY_SECS", 0.5)
    cluster.stop_controller()
    try:
        with slurm.start("submit", job_file, "--name", "patient", "--json") as submitting:
            wait_until(lambda: "trying again" in submitting.err(), "submit tries again", DOWN_SECS)
            with (
                slurm.start("describe", _known(slurm), "--json") as describing,
                slurm.start("cancel", _known(slurm)) as cancelling,
            ):
                with pytest.raises(SchedulerError, match="the job is not queued"):
                    slurm_queue.submit(tmp_path / "job.sh", "token")
                assert "Slurm does not answer" in describing.end().json()[0]["note"]
                refusal = cancelling.end()
            assert (slurm.root / "patient/job.sh").exists()
            cluster.start_controller()
            done = submitting.end()
    finally:
        if not cluster.has_controller():
            cluster.start_controller()
    assert (refusal.code, "not cancelled: Slurm does not answer" in refusal.err) == (12, True)
    assert done.code == 0, done.err
    assert queue(slurm).count("patient") == 1
    assert slurm.job("patient", done.json()[0]["job_id"]).end() == ("SUCCEEDED", 0)


def _known(slurm: BackEnd) -> str:
    """A job whose end its job-dir does not tell."""
    job_dir = slurm.root / "unknown_end"
    if not job_dir.exists():
        shutil.copytree(slurm.root / "lost_answer", job_dir)
        (job_dir / "status.json").unlink()
    return job_dir.name


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
    subprocess.run([shellcheck, tmp_path / "job.sh"], check=True, timeout=60)
    assert slurm.cluster is not None
    slurm.cluster.run(["sbatch", "--test-only", str(tmp_path / "job.sh")])

    done = slurm.run("submit", job_file, "--wait", "--job-dir", odd / "runs/odd")
    assert "rank 0 of 1 says a 'b' \"c\" $(touch nope) `d`" in done.out.splitlines()
    assert (odd / "runs/odd/logs/job.out").is_file()
    assert not list(odd.rglob("nope"))
    modules = slurm.run("submit", job_file, "--dry-run", "--set=resources.modules=[openmpi/4.1, cuda/12.4]").out
    assert "module load openmpi/4.1 cuda/12.4\n" in modules


def test_a_job_is_found_by_its_number_from_anywhere(slurm: BackEnd, job_file: Path, tmp_path: Path) -> None:
    (told,) = slurm.run("submit", job_file, "--job-dir", tmp_path / "far/away", "--json", "--wait").json()[:1]

    found = slurm.run("describe", told["job_id"], "--json", cwd=tmp_path).json()[0]

    assert (found["name"], found["state"], found["job_dir"]) == ("away", "SUCCEEDED", str(tmp_path / "far/away"))


def test_accounting_knows_what_the_controller_has_forgotten(slurm: BackEnd, tmp_path: Path) -> None:
    """A stand-in for sacct: this cluster has no accounting."""
    job_dir = slurm.root / "accounted"
    shutil.copytree(slurm.root / "lost_answer", job_dir)
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
        timeout=60,
    ).stdout
    assert "\x1b[32mSUCCEEDED" in coloured
    assert "\x1b" not in slurm.run("list").out

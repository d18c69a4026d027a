"""The batch script of a submitted job: what bash and sbatch read of it is what was put in, word for word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpc_train.config.program import ProgramConfig
from hpc_train.config.resources import Resources
from hpc_train.errors import UserError
from hpc_train.jobs.record.submission import Submission
from hpc_train.jobs.schedulers.slurm.script import on_all_components, quote_for_sbatch, render, sbatch_options
from tests.support import examples

REPOSITORY = Path(__file__).resolve().parents[5]
RANKS_SH, PACK_SH = REPOSITORY / "slurm/ranks.sh", REPOSITORY / "slurm/pack.sh"
HOSTILE = "my $(touch pwned) `touch pwned` ${HOME} 'q' \"dq\" #%j; & | * ? [a] ~ ! \t{a,b} größe"
"""What a folder may be called, and a value of a setting or an argument be."""
PATH_PART = HOSTILE.replace("\t", "")
"""What a job-dir may be called, and a variable be."""

BODY = r"""
show() {
    printf '%s=' "$1"
    shift
    printf '%s\0' "$@"
    printf '\n\0'
}
show command "${command[@]}"
show record "${record[@]}"
show again "${again[@]}"
show log_dir "$log_dir"
show program "${program:-}" "${alone:-}"
show here "$PWD"
show path "${PATH%%:*}"
show warned "$HPC_TRAIN_WARNING_SECS" "$PYTHONUNBUFFERED" "$HPC_TRAIN_PROGRESS"
show loaded "${loaded[@]:-}"
show variables "${A_VARIABLE:-}" "${OTHER:-}"
show options "$-"
"""
"""Stands for slurm/ranks.sh: tells what it is given."""
MODULE = 'module() { loaded=("$@"); unset -v nothing; : "$nothing"; }\nexport -f module\n'


def submission(kind: Any = "model", job_file: str = "/home/me/job.yaml", **changes: Any) -> Submission:
    fields: dict[str, Any] = {
        "token": "t0k",
        "name": "tiny_1",
        "kind": kind,
        "backend": "slurm",
        "submitted": 1e9,
        "user": "me",
        "host": "login",
        "job_file": job_file,
        "entry": Path(job_file).name,
        "settings": (),
        "resources": resources(),
        "code": {},
        "version": "0.1",
    }
    return Submission(**fields | changes)


def resources(**wants: Any) -> dict[str, Any]:
    return dict(json.loads(Resources(tier="T", **wants).model_dump_json()))


def program_args(job_dir: Path, *args: str) -> tuple[str, ...]:
    """As submit makes them."""
    return tuple(ProgramConfig(name="a", module="trainer.task", args=args).words(Path("/home/me"), job_dir))


def run(script: str, folder: Path, before: str = "") -> dict[str, list[str]]:
    """What bash finds in the variables of a script whose body is BODY; its job-dir is `folder`."""
    (folder / "code").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["bash", "-c", before + 'source "$0"', "/dev/stdin"],
        input=os.fsencode(script),
        env={"PATH": os.environ["PATH"], "HOME": "/wrong", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    found = {}
    for record in os.fsdecode(done.stdout).split("\n\0")[:-1]:
        name, _, words = record.partition("=")
        found[name] = words.split("\0")[:-1]
    assert not list(folder.rglob("pwned"))
    return found


def sbatch_words(line: str) -> list[str]:
    """The words of a #SBATCH line, as _get_argument of Slurm's src/sbatch/opt.c splits them."""
    words: list[str] = []
    word, quote, escaped, begun = "", "", False, False
    for letter in line.removeprefix("#SBATCH"):
        if escaped:
            word, escaped = word + letter, False
        elif letter == "\\":
            escaped = begun = True
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word += letter
        elif letter in "\"'":
            quote, begun = letter, True
        elif letter == "#":
            break
        elif letter in " \t\n\v\f\r":
            words += [word] if begun else []
            word, begun = "", False
        else:
            word, begun = word + letter, True
    assert not quote, "sbatch refuses a quote without an end"
    return [*words, word] if begun else words


def options_in(script: str) -> list[str]:
    """The options that sbatch finds: it reads #SBATCH lines up to the first command."""
    found = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            found += sbatch_words(line)
        elif line and not line.startswith("#"):
            break
    return found


options = st.builds(
    "--{}={}".format,
    st.sampled_from(["output", "mail-user"]),
    st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\\"), min_size=1, max_size=20),
)


@given(options)
@example("--comment=a b\"c#d'e%f$g`h`")
@example('--comment="')
@example("--exclusive")
def test_sbatch_reads_an_option_as_it_was(option: str) -> None:
    assert sbatch_words(f"#SBATCH {quote_for_sbatch(option)}") == [option]


def test_options_that_need_no_quotes_have_none() -> None:
    for option in ("--exclusive", "--job-name=a_1", "--output=/runs/a-1%%/x.log", "--signal=B:USR1@120", "--mem=1M"):
        assert quote_for_sbatch(option) == option
    assert quote_for_sbatch("--constraint=a&b") == '--constraint="a&b"'


def test_the_options_of_a_job() -> None:
    wants = resources(
        nodes=2,
        ranks_per_node=4,
        cores_per_rank=3,
        gpus_per_node=4,
        memory="16G",
        time=90,
        partition="gpu",
        account="proj-1",
        qos="high",
        constraint="(a100|h100)&ib",
        sbatch=("--exclusive", "--mail-user=me me"),
        warning_secs=300,
    )
    assert sbatch_options(submission(resources=wants), Path("/runs/50% of it/tiny_1")) == [
        "--job-name=tiny_1",
        "--output=/runs/50%% of it/tiny_1/logs/job.out",
        "--chdir=/runs/50% of it/tiny_1",
        "--open-mode=append",
        "--requeue",
        "--signal=B:USR1@300",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=3",
        "--gpus-per-node=4",
        "--mem=16384M",
        "--time=01:30:00",
        "--partition=gpu",
        "--account=proj-1",
        "--qos=high",
        "--constraint=(a100|h100)&ib",
        "--exclusive",
        "--mail-user=me me",
    ]


def test_nodes_that_may_be_lost() -> None:
    wants = resources(nodes=4, ranks_per_node=2, min_nodes=2, spare_nodes=1)
    options = sbatch_options(submission(resources=wants), Path("/runs/tiny"))
    assert "--no-kill" in options and "--nodes=5" in options
    text = render(submission(resources=wants), Path("/runs/tiny"), Path("/bin/python"), "", "")
    assert "\nmin_nodes=2\nspare_nodes=1\n" in text
    usual = render(submission(resources=resources(nodes=4)), Path("/runs/tiny"), Path("/bin/python"), "", "")
    assert "\nmin_nodes=\nspare_nodes=0\nlauncher=mpirun\n" in usual and "--no-kill" not in usual


def test_each_role_with_nodes_of_its_own_is_a_component() -> None:
    roles = {"parameter_servers": {"memory": "64G", "partition": "cpu"}, "workers": {"nodes": 2, "cores_per_rank": 4}}
    wants = resources(ranks_per_node=4, gpus_per_node=4, time=90, sbatch=("--exclusive",), **roles)
    options = sbatch_options(submission(resources=wants), Path("/runs/tiny_1"))
    end = ["--time=01:30:00", "--exclusive"]
    servers = ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=65536M", *end[:1], "--partition=cpu"]
    workers = ["--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=4", "--gpus-per-node=4", *end]
    assert options[5:] == ["--signal=B:USR1@120", *servers, "--exclusive", "hetjob", *workers]
    assert on_all_components("x").endswith("}\nx\n")


def test_packs_and_packages() -> None:
    def text(**wants: str) -> str:
        return render(submission(resources=resources(**wants)), Path("/my runs/a"), Path("/bin/python"), "", "UNPACK")

    assert "UNPACK" not in text() and "PYTHONPATH" not in text()
    with_pack = text(pack="auto", requirements="/x")
    assert "\npack_list='/my runs/a/packs.sha256'\npack=\n" in with_pack and "PYTHONPATH" not in with_pack
    assert with_pack.index("\ncommand=") < with_pack.index("\nUNPACK\n") < with_pack.index("# ---- slurm/ranks.sh")
    assert "export PYTHONPATH='/my runs/a/packages'${PYTHONPATH:+:$PYTHONPATH}\n" in text(requirements="/x")


def test_what_is_left_to_the_cluster_is_not_among_them() -> None:
    names = [option.partition("=")[0] for option in sbatch_options(submission(), Path("/runs/tiny_1"))]
    assert not {"--time", "--mem", "--gpus-per-node", "--partition", "--account", "--qos", "--constraint"} & {*names}


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\tb", "a\\b", "a\x1bb", "a\x7fb", "a\0b"])
def test_a_job_dir_that_cannot_be_written_into_a_script(name: str) -> None:
    job_dir = Path("/runs", name, "tiny_1")
    with pytest.raises(UserError, match="the path of a job-dir may hold no backslash, and no line break"):
        render(submission(), job_dir, Path("/py/bin/python"), BODY, "")


def test_paths_that_are_no_text(tmp_path: Path) -> None:
    strange = os.fsdecode(b"/r\xfcns")
    for job_dir, job_file in ((Path(strange, "tiny_1"), "/home/me/job.yaml"), (tmp_path, f"{strange}/job.yaml")):
        with pytest.raises(UserError, match=r"/r\\udcfcns.*UTF-8"):
            render(submission(job_file=job_file), job_dir, Path("/py/bin/python"), BODY, "")


def test_sbatch_finds_the_options_and_nothing_else(tmp_path: Path) -> None:
    job_dir = tmp_path / PATH_PART / "tiny_1"
    wants = resources(sbatch=('--mail-user=a "b" #c $(d)', "--exclusive"), environment={"A": "#SBATCH --nodes=9"})
    job = submission(resources=wants, settings=("params.x=1\n#SBATCH --nodes=9\n",))
    script = render(job, job_dir, Path("/py/bin/python"), "#SBATCH --nodes=9\n", "")
    assert options_in(script) == sbatch_options(job, job_dir)
    assert f"--chdir={job_dir}" in options_in(script)
    assert script.startswith("#!/bin/bash\n")


def test_bash_finds_the_words_of_a_model(tmp_path: Path) -> None:
    folder = f"/home/{HOSTILE}\n/of me"
    job_dir = tmp_path / PATH_PART / "tiny_1"
    job = submission(
        job_file=f"{folder}/{HOSTILE}.yaml",
        settings=("train.max_steps=5", f"params.x={HOSTILE}", "params.y={a: 1,\n b: 'c'}"),
        resources=resources(time=4, environment={"A_VARIABLE": PATH_PART, "OTHER": "\\"}, modules=("cuda/12.1", "b")),
    )
    job_dir.mkdir(parents=True)
    job.save_secrets(job_dir)
    found = run(render(job, job_dir, Path(f"/py/{HOSTILE}/python"), BODY, ""), job_dir, MODULE)
    assert found["command"] == [
        *("hpc-train", "train", f"{job_dir}/code/{HOSTILE}.yaml", "--job-dir", f"{job_dir}", "--data-root", folder),
        *("--set", "train.max_steps=5", "--set", f"params.x={HOSTILE}", "--set", "params.y={a: 1,\n b: 'c'}"),
    ]
    assert found["record"] == ["--job-dir", f"{job_dir}", "--submission", "t0k", "--log", f"{job_dir}/logs/job.out"]
    assert found["again"] == ["hpc-train", "resume", f"{job_dir}"]
    assert found["log_dir"] == [f"{job_dir}/logs"]
    assert found["program"] == ["", ""]
    assert found["here"] == [f"{job_dir}/code"]
    assert found["path"] == [f"/py/{HOSTILE}"]
    assert found["variables"] == [PATH_PART, "\\"]
    assert found["loaded"] == ["load", "cuda/12.1", "b"]
    assert found["warned"] == ["60", "1", "lines"]
    assert {"e", "u"} <= {*found["options"][0]}, "mistakes end the script also after modules were loaded"


@pytest.mark.parametrize(("ranks", "alone"), [(1, "1"), (3, "")])
def test_bash_finds_the_words_of_a_program(tmp_path: Path, ranks: int, alone: str) -> None:
    job_dir = tmp_path / "tiny_1"
    args = program_args(job_dir, "--data", "{folder}/" + HOSTILE, "", "-", "--", "=", "\\", "$(touch pwned)")
    job = submission("program", args=args, resources=resources(ranks_per_node=ranks))
    job_dir.mkdir(parents=True, exist_ok=True)
    job.save_secrets(job_dir)
    found = run(render(job, job_dir, Path("/py/bin/python"), BODY, ""), job_dir)
    assert found["command"] == ["python", *args]
    assert found["command"][:5] == ["python", "-m", "trainer.task", "--data", f"/home/me/{HOSTILE}"]
    assert found["program"] == ["1", alone]


@settings(max_examples=examples(15))
@given(
    args=st.lists(st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"])), min_size=1),
    value=st.text(st.characters(exclude_categories=["Cc", "Cs"])),
)
def test_any_words_at_all(tmp_path_factory: pytest.TempPathFactory, args: list[str], value: str) -> None:
    job_dir = tmp_path_factory.getbasetemp() / "words"
    given_words = ("-m", "task", *args)
    job = submission("program", args=given_words, resources=resources(environment={"A_VARIABLE": value}))
    job_dir.mkdir(parents=True, exist_ok=True)
    job.save_secrets(job_dir)
    found = run(render(job, job_dir, Path("/py/bin/python"), BODY, ""), job_dir)
    assert found["command"] == ["python", *given_words]
    assert found["variables"] == [value, ""]


def test_a_cluster_without_modules_says_so(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    script = render(submission(resources=resources(modules=("cuda",))), tmp_path, Path("/py/bin/python"), BODY, "")
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["bash"], input=script, env=env, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hpc-train: the job's tier has modules, but there is no command called module here\n"


def test_a_module_that_cannot_be_loaded_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    script = render(submission(resources=resources(modules=("cuda",))), tmp_path, Path("/py/bin/python"), BODY, "")
    command = ["bash", "-c", 'module() { return 1; }; source "$0"', "/dev/stdin"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (1, "")


@dataclass(frozen=True)
class Script:
    """A job whose script is checked."""

    name: str
    kind: str
    wants: Mapping[str, Any]
    args: Sequence[str] = ()
    settings: tuple[str, ...] = ()


SCRIPTS = [
    Script("model", "model", {"nodes": 2, "ranks_per_node": 4, "memory": "16G"}, (), ("train.max_steps=5",)),
    Script("alone", "program", {}, ("--data", "{folder}/my data", "$(touch pwned)", "", "a'b")),
    Script("ranks", "program", {"ranks_per_node": 4, "gpus_per_node": 4}, ("--epochs", "3")),
    Script("pack", "program", {"pack": "auto", "requirements": "/a/b.txt"}, ()),
    Script(
        "site",
        "model",
        {"modules": ("cuda/12.1", "openmpi"), "environment": {"A": "x y; $z", "B": "`id`"}, "sbatch": ("--exclusive",)},
        (),
        (f"params.x={HOSTILE}",),
    ),
]


def test_shellcheck_finds_nothing_in_the_scripts(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no shellcheck: run make setup")
        pytest.skip("no shellcheck: run make setup")
    for script in SCRIPTS:
        job_dir = Path("/scratch/my runs", script.name)
        args = program_args(job_dir, *script.args) if script.kind == "program" else ()
        job = submission(script.kind, args=args, resources=resources(**script.wants), settings=script.settings)
        text = render(job, job_dir, Path("/py/bin/python"), RANKS_SH.read_text(), PACK_SH.read_text())
        assert RANKS_SH.read_text().rstrip() in text
        (tmp_path / f"{script.name}.sh").write_text(text)
    files = sorted(map(str, tmp_path.glob("*.sh")))
    users_own = "--exclude=SC2016"  # a $ in single quotes
    done = subprocess.run([shellcheck, users_own, *files], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for file in files:
        assert subprocess.run(["bash", "-n", file], capture_output=True, timeout=600).stderr == b""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from hpc_train.resilience.failure import FailureReport
from hpc_train.telemetry.environment import binding_lines, describe_environment, noted_variables, rank_table
from hpc_train.telemetry.progress import Rate, TrainingProgress, is_live


def test_a_failure_is_told_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    text = FailureReport(tmp_path / "missing", "run").claim(0, ValueError("broken"))
    assert text is not None
    assert "ValueError: broken" in text
    assert "not written" in text


def test_rate_leaves_out_the_first_step_and_what_is_not_training() -> None:
    now = 0.0
    rate = Rate(lambda: now)
    assert (rate.mean, rate.secs_for(5)) == (0, None)
    for secs in (100, 2, 2):
        now += secs
        rate.step(10)
    assert rate.mean == 5
    rate.pause()
    now += 1000
    rate.resume()
    now += 4
    rate.step(12)
    assert rate.mean == 4
    assert rate.secs_for(3) == 8


def test_lines_in_a_log(logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_TRAIN_PROGRESS", "lines")
    with TrainingProgress(Console(width=100), 0, 25, 10) as progress:
        for step in range(1, 26):
            progress.update(step, 0.5, 1234.4, None if step > 20 else 0.004, 61.0, last=step == 25)
    assert logged[0] == "step 10/25  loss 0.5000  1,234 examples/s  input wait 0.4%  0:01:01 left"
    assert [line.split()[1] for line in logged] == ["10/25", "20/25", "25/25"]
    assert logged[2] == "step 25/25  loss 0.5000  1,234 examples/s  0:01:01 left"


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_TRAIN_PROGRESS", "bar")
    console = Console(width=100, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with TrainingProgress(console, 0, 20, 10) as progress:
        progress.update(20, 0.25, 1234, 0.5, 0, last=True)
    text = console.export_text()
    assert "20/20" in text
    assert "loss 0.2500" in text
    assert "1,234 examples/s  input wait 50.0%" in text


@pytest.mark.parametrize("width", [80, 64])
def test_a_bar_in_a_narrow_terminal_shows_the_time_left_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_TRAIN_PROGRESS", "bar")
    console = Console(width=width, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with TrainingProgress(console, 0, 100_000, 10) as progress:
        progress.update(50_000, 0.25, 1234, 0.5, 0, last=True)
    text = console.export_text()
    line = text[text.rindex("step ") :].rstrip()
    assert line.startswith("step 50000/100000 ") and " loss 0.2500  1,234 examples/s " in line
    assert re.search(r" (\d|-):\S\S:\S\S left *$", line) and "…" not in line


RANK = {"host": "n1", "cores": 4, "device": "CPU", "shards": "4,500 of 9,000 rows an epoch, 8 files, global"}


@pytest.mark.parametrize(
    ("host", "width", "names"),
    [
        ("n1", 160, ["rank", "role", "host", "cores", "device", "shards", "seed"]),
        ("n1", 80, ["rank", "role", "host", "cores", "device", "shards"]),
        ("a-node-with-a-long-name.cluster", 80, ["rank", "role", "host", "device", "shards"]),
        ("a-node-with-a-long-name.cluster", 60, ["rank", "role", "host", "device", "shards"]),
        (f"node{'x' * 200}17", 80, ["rank", "role", "host", "device", "shards"]),
    ],
)
def test_the_table_of_ranks_fits_into_the_terminal(host: str, width: int, names: list[str]) -> None:
    ranks = [{"rank": n, "role": "worker", "seed": str(2**63), **RANK, "host": host} for n in (0, 1023)]
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(rank_table(ranks, console.width))
    head, *lines = console.export_text().splitlines()
    assert head.split() == names and len(lines) == 2
    assert lines[1].startswith("1023  worker  ") and "  CPU " in lines[1] and len(lines[1].rstrip()) <= width
    assert head.index("shards") + 20 <= width, "what remains of a column can be read"
    assert "x17 " in lines[1] or "xx" not in host, "of a name that is cut the end is shown, too"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_bar_shows_what_matters_most_whatever_the_numbers(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_TRAIN_PROGRESS", "bar")
    console = Console(width=width, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with TrainingProgress(console, 0, 10_000_000, 10) as progress:
        progress.update(5_000_000, 1.5e25, 123_456_789, 0.123, 0, last=True)
    text = console.export_text()
    line = text[text.rindex("step ") :].rstrip()
    assert line.startswith("step 5000000/10000000 ") and " loss 1.5e+25 " in line and line.endswith(" left")
    assert (" 123,456,789 examples/s " in line) == (width > 60) and (" input wait 12.3% " in line) == (width > 80)


def test_where_a_bar_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_live({"HPC_TRAIN_PROGRESS": "bar"})
    assert not is_live({"HPC_TRAIN_PROGRESS": "lines"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert is_live({})
    # Below mpirun every rank has a terminal; the launcher here is pytest's parent, which is no mpirun in a terminal.
    monkeypatch.setattr("os.readlink", lambda path: "/tmp/job.out")
    assert not is_live({"OMPI_COMM_WORLD_SIZE": "2"})
    monkeypatch.setattr("os.readlink", lambda path: "/dev/pts/3")
    assert is_live({"OMPI_COMM_WORLD_SIZE": "2"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert not is_live({})


PLAIN = {
    "CUDA_VISIBLE_DEVICES": "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f,MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
    "HOROVOD_CYCLE_TIME": "0.1",
    "HPC_TRAIN_MODULES": "openmpi/4.1.6-GCC-13.2.0 CUDA/12.4.0",
    "LD_LIBRARY_PATH": "/opt/software/CUDA/12.4.0/lib64:/home/Anna_M/Project-2026/venv/lib/python3.11/site-packages",
    "OMPI_MCA_orte_hnp_uri": "688324608.0;tcp://192.0.2.2:39675;tcp6://[fd00::2]:49969",
    "SLURM_JOB_NODELIST": "tcn[0001-0128,0130]",
    "SLURM_TASKS_PER_NODE": "2(x4)",
    "XLA_FLAGS": "--xla_gpu_cuda_data_dir=/usr/local/cuda-12.4 --xla_dump_to=/scratch/xla?x=1",
}
SECRET_NAMES = [
    "TOKEN", "secret", "Password", "PASSWD", "passphrase", "API_KEY", "AccessKeyId", "CREDENTIALS", "AUTH", "cookie",
    "private", "JWT",
]  # fmt: skip
SECRET_VALUES = [
    r"(https?|postgresql|s3)://[a-z]{1,9}:[!-.0-9A-Za-z]{1,9}@[a-z]{1,9}/[a-z]{0,9}",
    r"https://[a-z0-9]{5,20}@github\.com",
    r"A[KS]IA[A-Z0-9]{16}",
    r"gh[opsu]_[A-Za-z0-9]{36}",
    r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    r"hf_[A-Za-z]{34}",
    r"sk-[A-Za-z0-9]{48}",
    r"xoxb-[0-9]{12}-[A-Za-z0-9]{24}",
    r"eyJ[A-Za-z0-9_-]{20}\.eyJ[A-Za-z0-9_-]{20}\.[A-Za-z0-9_-]{43}",
    r"-----BEGIN (RSA |)PRIVATE KEY-----",
    r"(Bearer |password=|Token: ?)[a-z]{6}",
]


def test_the_environment_that_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"HOME": "/root", "USER": "me", "DATABASE": "x", "MYTF_A": "1", "SLURM_JWT": "x", "TF_API_KEY": "y"}
    assert noted_variables({**PLAIN, **other}) == PLAIN
    assert list(noted_variables({"TF_B": "", "TF_A": "", "OMP_A": ""})) == ["OMP_A", "TF_A", "TF_B"]
    monkeypatch.setenv("TF_NOT_UTF8", "\udcff")
    monkeypatch.setenv("SLURM_AUTH_TOKEN", "hush")
    described = describe_environment([], tmp_path)
    assert described["environment"]["TF_NOT_UTF8"] == "\ufffd"
    assert "hush" not in json.dumps(described)


@given(st.sampled_from(sorted(PLAIN)), st.sampled_from(SECRET_NAMES), st.text("aB0_", max_size=3))
def test_a_variable_whose_name_speaks_of_a_secret_is_left_out(name: str, secret: str, end: str) -> None:
    for spelled in (secret, secret.lower(), secret.upper()):
        assert noted_variables({f"{name}_{spelled}{end}": "1"}) == {}


@given(st.one_of([st.from_regex(shape, fullmatch=True) for shape in SECRET_VALUES]), st.sampled_from(sorted(PLAIN)))
@example("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "XLA_FLAGS")  # Amazon's own example
@example("f941e0f37e1d65b7-6cbdb17e151fed04", "OMPI_MCA_orte_hnp_uri")  # Open MPI's key for its transports
@example("0123456789abcdef0123456789abcdef01234567", "XLA_FLAGS")  # Weights & Biases
@example("Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZg==", "HPC_TRAIN_MODULES")
def test_a_variable_that_holds_what_looks_like_a_secret_is_left_out(secret: str, name: str) -> None:
    for value in (secret, f"{PLAIN[name]} {secret}", f"--option={secret}", f"{secret} {PLAIN[name]}"):
        assert noted_variables({"TF_X": value}) == {}, value


@given(st.dictionaries(st.text("ab_", min_size=1, max_size=9), st.text(max_size=60)))
def test_what_is_noted_is_as_it_was(env: dict[str, str]) -> None:
    assert (
        noted_variables(env).items()
        <= {name: value.encode(errors="replace").decode() for name, value in env.items()}.items()
    )


def test_what_ranks_are_bound_to_in_a_line_for_nodes_that_are_alike() -> None:
    bound = {"by": "hpc_train", "cpus": "0-15", "numa": "0"}
    ranks = [{"host": host, "device": "A100 0", "binding": bound} for host in ("n1", "n2", "n3")]
    ranks.append({"host": "n3", "device": "CPU", "binding": {"why": "no room"}})
    assert binding_lines(ranks) == [
        "cores on n1 and 1 more alike: local rank 0 with A100 0 on 0-15 (NUMA 0) by hpc_train",
        "cores on n3: local rank 0 with A100 0 on 0-15 (NUMA 0) by hpc_train; local rank 1 is not bound (no room)",
    ]
    assert binding_lines([{"host": "n1", "binding": {"why": "bind is none"}}, {"host": "n2"}]) == []

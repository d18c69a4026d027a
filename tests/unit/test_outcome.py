"""The one table of exit codes: the documentation and the batch scripts say what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import outcome
from hpc_train.outcome import (
    KILLED,
    OTHER,
    OUTCOMES,
    STOP_CODES,
    Again,
    Outcome,
    describe_end,
    is_requeued,
    outcome_of,
    signal_name,
)

REPOSITORY = Path(__file__).resolve().parents[2]
EXIT_CODES = {name: code for name, code in vars(outcome).items() if name.startswith("EXIT_")}
AGAIN = {
    Again.FINAL: "no",
    Again.RESTART: "by `--max-restarts`",
    Again.REQUEUE: "by its queue",
    Again.RESTART | Again.REQUEUE: "by both",
}


def test_every_exit_code_has_its_row() -> None:
    assert sorted(OUTCOMES) == [0, *sorted(EXIT_CODES.values())] == [*range(13), 130, 205]
    assert len({row.name for row in OUTCOMES.values()}) == len(OUTCOMES)


def table() -> list[str]:
    """The table of docs/running.md."""
    rows: dict[str, Outcome] = {str(code): row for code, row in OUTCOMES.items()}
    rows |= {"128 + n": KILLED, "others": OTHER}
    lines = [f"| {code} | {row.meaning} | {AGAIN[row.again]} |" for code, row in rows.items()]
    return ["| code | meaning | started again |", "|---|---|---|", *lines]


def test_the_documentation_has_the_table() -> None:
    text = (REPOSITORY / "docs/running.md").read_text()
    section = text.split("\n## Exit codes\n")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")] == table()


@pytest.mark.parametrize("script", ["ranks.sh", "alone.sh"])
def test_the_batch_scripts_have_the_same_codes(script: str) -> None:
    text = (REPOSITORY / "slurm" / script).read_text()
    named = {name: int(code) for name, code in re.findall(r"\b(EXIT_\w+)=(\d+)", text)}
    assert named
    assert named.items() <= EXIT_CODES.items()
    lists = {
        "SAVED": sorted(STOP_CODES.values()),
        "FINAL": [code for code in OUTCOMES if not is_requeued(code, warned=True, ended=True)],
        "UNREQUEUED": [code for code in OUTCOMES if not is_requeued(code, warned=True, ended=False)],
    }
    found = {name: list(map(int, codes.split())) for name, codes in re.findall(r'\b(\w+)_CODES="([\d ]*)"', text)}
    assert found == (lists if script == "ranks.sh" else {"UNREQUEUED": lists["UNREQUEUED"]})
    compared = re.findall(r"\bcode (?:==|!=|=~|>=|<=) (?:\d+|[\[^(]\S+)", text)
    assert set(compared) <= {"code == 0"}, "codes have names here"


def test_names_of_signals_and_ends() -> None:
    assert [signal_name(code) for code in (0, 1, 128, 137, 143, 255)] == [None, None, None, "SIGKILL", "SIGTERM", None]
    assert describe_end(137) == ("failed", "the ranks ended with code 137 (killed by SIGKILL)")
    assert describe_end(1) == ("failed", "the ranks ended with code 1")
    assert [code for code in range(1, 256) if describe_end(code)[0] == "stopped"] == [3, 4, 5, 8]


def test_what_has_no_row_is_a_signal_or_a_code_of_its_own() -> None:
    assert [outcome_of(code) for code in (137, 143, 42, 255)] == [KILLED, KILLED, OTHER, OTHER]


@given(st.integers(0, 255), st.booleans())
def test_what_a_queue_starts_again(code: int, warned: bool) -> None:
    assert not is_requeued(code, warned=False, ended=False), "a job that ends by itself has ended"
    assert is_requeued(code, warned, ended=True) == (outcome_of(code).again != Again.FINAL)
    assert is_requeued(code, warned=True, ended=False) <= is_requeued(code, warned=True, ended=True)


def test_a_checkpoint_that_could_not_be_written_is_final_everywhere() -> None:
    assert outcome_of(outcome.EXIT_NOT_SAVED).again == Again.FINAL


def test_it_is_light() -> None:
    """The batch script asks it in the seconds before Slurm kills a job."""
    program = "import sys, hpc_train.outcome; print(*sorted(name for name in sys.modules if name in sys.argv[1:]))"
    heavy = ["tensorflow", "keras", "numpy", "h5py", "mpi4py", "pydantic", "yaml", "hpc_train.errors"]
    done = subprocess.run([sys.executable, "-c", program, *heavy], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr

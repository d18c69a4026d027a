"""Which log records are shown, where, and as what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.telemetry.log_levels import parse_levels
from tests.support import environment

PROGRAM = r"""
import logging, sys
from hpc_train.telemetry.logs import set_up_logging
rank = int(sys.argv[1])
set_up_logging(rank == 0, rank)
log = logging.getLogger("hpc_train.checkpoint.manager")
log.debug("looked")
log.info("[bold]as it is[/bold] :warning: \x1b[2J")
log.warning("slow")
logging.getLogger("hpc_train.engine").debug("a step")
"""


AS_IT_IS = r"[bold]as it is[/bold] :warning: \x1b[2J"


def shown(rank: int, levels: str = "") -> tuple[list[str], list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(rank)],
        env=environment(HPC_TRAIN_LOG=levels),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_the_chief_shows_information_on_standard_output_as_it_is() -> None:
    assert shown(0) == ([AS_IT_IS, "warning: slow"], [])


def test_other_ranks_show_warnings_alone_on_standard_error() -> None:
    assert shown(3) == ([], ["hpc-train: rank 3: warning: slow"])


def test_levels_of_all_and_of_one_logger() -> None:
    assert shown(0, "warning") == (["warning: slow"], [])
    lines, _ = shown(0, "warning,hpc_train.checkpoint=debug")
    assert lines == ["debug: hpc_train.checkpoint.manager: looked", AS_IT_IS, "warning: slow"]
    assert shown(0, "debug")[0][-1] == "debug: hpc_train.engine: a step"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loud", "'loud' is not allowed; allowed: debug, info, warning, error"),
        ("debag", "did you mean debug?"),
        ("hpc_train.data=", "'' is not allowed"),
        ("tensorflow=debug", "'tensorflow' is no logger of this package"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match="log level") as refused:
        parse_levels(text)
    assert said in str(refused.value)


def test_a_command_logs_on_standard_error(tmp_path: Path) -> None:
    def submitted(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpc_train", *options, "submit", "none.yaml", "--dry-run"]
        return subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=600)

    assert "none.yaml" in submitted("--verbose").stderr
    done = submitted("--log-level", "debug", "--log-level", "hpc_train.jobs=loud")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'loud' is not allowed" in done.stderr


def test_levels_of_a_program_stay_and_those_of_an_earlier_run_do_not() -> None:
    program = """
import logging, os
from hpc_train.telemetry.logs import set_up_logging
logging.getLogger("hpc_train").setLevel(logging.ERROR)
for levels in ("hpc_train.data=debug", ""):
    os.environ["HPC_TRAIN_LOG"] = levels
    set_up_logging(True, 0)
    print([logging.getLogger(name).level for name in ("hpc_train", "hpc_train.data")])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.stdout.splitlines() == ["[40, 10]", "[40, 0]"], done.stderr

"""slurm/container.sh, with a script in place of hpc-train: what starts ranks, refusals, and signals meanwhile."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import LIMIT_SECS, REPOSITORY, wait_for

SCRIPT = f"""\
set -euo pipefail
stop=
trap 'stop=USR1' USR1
me=test launcher=mpirun program= record=(job.yaml --job-dir "a dir") command=(hpc-train train job.yaml)
source {REPOSITORY}/slurm/container.sh
printf '<%s>' "stop=$stop" "TMPDIR=$TMPDIR" "${{command[@]}}"
"""


def start(tmp_path: Path, hpc_train: str, tmpdir: str = "/tmp") -> subprocess.Popen[str]:
    """Runs it, with this text of a shell as hpc-train, which notes its arguments."""
    (tmp_path / "hpc-train").write_text(f'#!/bin/bash\necho "$*" >>{tmp_path}/calls\n{hpc_train}\n')
    (tmp_path / "hpc-train").chmod(0o755)
    pipe = subprocess.PIPE
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": tmpdir}
    return subprocess.Popen(["bash", "-c", SCRIPT], env=env, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(
    ("hpc_train", "code", "says"),
    [
        ("printf '%s\\0' run 'an image' -- 0", 0, "<run><an image><--><python3><-m><hpc_train><train><job.yaml>"),
        ("echo 'why not' >&2; printf '%s\\0' 2", 2, "why not"),
        ("[ $1 = record-end ] || kill -9 $$", 1, "test: what is in the container is not known"),
        ("[ $1 = record-end ] || printf 'half a'", 1, "test: what is in the container is not known"),
    ],
)
def test_the_ranks_command_or_why_there_is_none(tmp_path: Path, hpc_train: str, code: int, says: str) -> None:
    with start(tmp_path, hpc_train) as script:
        out, err = script.communicate(timeout=LIMIT_SECS)
    assert script.returncode == code and says in out + err, out + err
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "in-container --launcher mpirun job.yaml --job-dir a dir"
    assert calls[1:] == (["record-end --code 1 job.yaml --job-dir a dir"] if code == 1 else [])


def test_a_signal_that_comes_meanwhile_is_heard_and_no_rank_starts(tmp_path: Path) -> None:
    with start(
        tmp_path, "echo $$ >pid.new; mv pid.new pid; exec sleep 3600".replace("pid", f"{tmp_path}/pid")
    ) as script:
        wait_for((tmp_path / "pid").exists, "that it looks")
        script.send_signal(signal.SIGUSR1)
        out, err = script.communicate(timeout=LIMIT_SECS)
    assert (script.returncode, out) == (0, "<stop=USR1><TMPDIR=/tmp><hpc-train><train><job.yaml>"), err
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of what looked")


def test_ranks_and_mpirun_meet_in_tmp(tmp_path: Path) -> None:
    with start(tmp_path, "printf '%s\\0' run 0", tmpdir="/var/tmp") as script:
        out, _ = script.communicate(timeout=LIMIT_SECS)
    assert "test: TMPDIR is /tmp for ranks in a container, not /var/tmp" in out and "<TMPDIR=/tmp>" in out

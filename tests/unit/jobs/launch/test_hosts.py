"""Lists of hosts, who is asked whether they answer, and on which hosts a job goes on."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.jobs.launch.host_probe import (
    AGENT_VARIABLE,
    agent_command,
    names_of_this_machine,
    silent,
)
from hpc_train.jobs.launch.hosts import Host, host_list, parse_hosts, ranks_on
from hpc_train.jobs.launch.launchers.mpirun import mpirun_command
from hpc_train.jobs.launch.rank_hosts import RankHosts, check_counts
from hpc_train.jobs.launch.supervisor import RunEnd, supervise

never = lambda: False
THREE = (Host("n1", 2), Host("n2", 2), Host("n3", 1))


def test_a_list_of_hosts_is_read_and_written() -> None:
    assert parse_hosts("n1:2, n2:2,n3") == THREE
    assert ranks_on(THREE) == 5
    assert parse_hosts(host_list(THREE)) == THREE


@pytest.mark.parametrize(
    "text",
    ["", "n1,", ",n1", "n1:", "n1:0", "n1:-1", "n1:x", "n1:2:3", "-x", "n1 n2", "n1;true", "n:99999", "n\u0661"],
)
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--hosts: .* is not allowed; allowed: HOST:RANKS"):
        parse_hosts(text)


def test_a_host_is_named_once() -> None:
    with pytest.raises(UserError, match="n1 is there twice"):
        parse_hosts("n1:2,n2,n1")


def test_ranks_and_least_hosts_fit_the_hosts() -> None:
    assert check_counts(THREE, None, None) == 3, "all"
    assert check_counts(THREE, 5, 2) == 2
    with pytest.raises(UserError, match="-n 4 does not fit --hosts, which has 5 ranks on 3 hosts"):
        check_counts(THREE, 4, None)
    for least in (0, 4):
        with pytest.raises(UserError, match=f"--min-hosts: {least} is not allowed.*allowed: 1 to 3"):
            check_counts(THREE, None, least)


def test_a_job_goes_on_where_hosts_answer_and_comes_back_to_them() -> None:
    up = {"n1", "n2", "n3"}
    asked: list[Sequence[Host]] = []

    def probe(hosts: Sequence[Host], is_over: object) -> Mapping[str, str]:
        asked.append(hosts)
        return {host.name: f"{host.name} does not answer" for host in hosts if host.name not in up}

    hosts = RankHosts(THREE, 2, probe)
    assert (hosts.ranks, hosts.reason) == (5, "")
    up.remove("n2")
    assert hosts.ask() is None
    assert (hosts.hosts, hosts.ranks) == ((Host("n1", 2), Host("n3", 1)), 3)
    assert hosts.reason == "n2 does not answer, 3 ranks on 2 hosts: n1, n3"
    up.remove("n3")
    assert hosts.ask() == "n2 does not answer, n3 does not answer, 1 host left of 3, and --min-hosts is 2"
    assert hosts.ranks == 3, "as before"
    up |= {"n2", "n3"}
    assert hosts.ask() is None
    assert (hosts.ranks, hosts.reason) == (5, "")
    assert asked == [THREE] * 3, "also those that were lost"


@pytest.mark.parametrize(
    ("lost", "multiple", "on", "why"),
    [
        ("n3", 2, "n1 n2", "n3 does not answer, 4 ranks on 2 hosts: n1, n2"),
        ("n2", 2, "n1", "n2 does not answer, 2 ranks on 1 host: n1"),
        ("n2", 4, "", "n2 does not answer, the job cannot run on the ranks of 2 hosts"),
    ],
)
def test_hosts_on_whose_ranks_the_job_cannot_run_are_left_out(lost: str, multiple: int, on: str, why: str) -> None:
    hosts = RankHosts(THREE, 1, lambda *_: {lost: f"{lost} does not answer"}, lambda ranks: ranks % multiple == 0)
    few = hosts.ask()
    if on:
        assert few is None
        assert (" ".join(host.name for host in hosts.hosts), hosts.reason) == (on, why)
    else:
        assert (few, hosts.hosts) == (why, THREE)


@pytest.mark.parametrize(("few", "code", "runs"), [(None, 137, 2), ("n2 does not answer", 205, 1)])
def test_too_few_hosts_end_the_restarts(few: str | None, code: int, runs: int) -> None:
    begun, said = [], []

    def run(restarts: int) -> RunEnd:
        begun.append(restarts)
        return RunEnd(137, "rank 1 was killed by SIGKILL")

    assert supervise(run, lambda: None, 1, lambda secs: True, said.append, lambda: few) == code
    assert len(begun) == runs
    assert said[-1].endswith("not restarted: " + (few or "--max-restarts allows 1"))


def test_what_is_asked_to_stop_while_hosts_are_asked_says_only_that() -> None:
    said, stop = [], []

    def ask() -> str | None:
        stop.append(1)
        return "n2 does not answer"

    run = lambda restarts: RunEnd(137, "killed")
    assert supervise(run, lambda: None, 1, lambda secs: not stop, said.append, ask) == 137
    assert said == ["killed; not restarted: it was asked to stop"]


def test_hosts_are_not_asked_after_an_end_that_is_final() -> None:
    def ask() -> str | None:
        raise AssertionError

    assert supervise(lambda restarts: RunEnd(2, "bad input"), lambda: None, 3, lambda secs: True, print, ask) == 2
    assert supervise(lambda restarts: RunEnd(0, ""), lambda: None, 3, lambda secs: True, print, ask) == 0


@pytest.fixture
def agent(tmp_path: Path) -> tuple[Path, str]:
    """A program in place of ssh; the host `gone` refuses, the host `stuck` says nothing."""
    script = tmp_path / "agent"
    script.write_text('#!/bin/sh\n[ "$1" = gone ] && exit 255\n[ "$1" = stuck ] && exec sleep 600\nshift; exec "$@"\n')
    script.chmod(0o700)
    return script, str(script)


def test_the_hosts_that_answer_are_found(agent: tuple[Path, str]) -> None:
    assert silent(["n1", "gone"], [agent[1]], never) == {"gone": "gone does not answer"}
    assert silent(["n1", "stuck"], [agent[1]], lambda: True), "is not waited for"
    assert silent(["stuck"], [agent[1]], never, limit_secs=0.2) == {"stuck": "stuck does not answer"}


def test_a_host_that_cannot_be_asked_does_not_answer(agent: tuple[Path, str], tmp_path: Path) -> None:
    assert silent(["n1"], [str(tmp_path / "absent")], never) == {"n1": "n1 does not answer"}


def test_this_machine_has_all_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name == "unknown":
            raise socket.gaierror
        return [
            (
                socket.AF_INET,
                socket.SOCK_DGRAM,
                0,
                "",
                ({"alias": "127.0.0.1", "other": "192.0.2.7", "0": "0.0.0.0"}[name], 0),
            )
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    here = os.uname().nodename
    assert names_of_this_machine([here, "alias", "other", "0", "unknown"]) == {here, "alias"}


def test_hosts_are_asked_by_the_agent_of_mpirun(agent: tuple[Path, str], tmp_path: Path) -> None:
    for name in ("ssh", "rsh"):
        (tmp_path / name).symlink_to(agent[0])
    path = {"PATH": str(tmp_path)}
    ssh, *more = agent_command(path)
    assert ssh == str(tmp_path / "ssh")
    assert shlex.join(more) == "-o BatchMode=yes -o ConnectTimeout=10"
    assert agent_command({**path, AGENT_VARIABLE: "nowhere -x : agent -v"}) == (agent[1], "-v")
    (tmp_path / "ssh").unlink()
    assert agent_command(path) == (str(tmp_path / "rsh"),)
    with pytest.raises(UserError, match=f"no program of 'nowhere' .* set {AGENT_VARIABLE}"):
        agent_command({**path, AGENT_VARIABLE: "nowhere"})


def test_mpirun_is_told_the_hosts_and_hands_variables_on() -> None:
    env = {"HPC_TRAIN_LOG": "info", "HOME": "/root", "PYTHONPATH": "/here"}
    command, _ = mpirun_command("mpirun", "Open MPI 4.1", 5, ["job"], False, env, hosts=THREE)
    text = shlex.join(command)
    assert "-np 5 --host n1:2,n2:2,n3:1 -x HPC_TRAIN_LOG -x PYTHONPATH env" in text
    command, _ = mpirun_command("mpirun", "HYDRA", 5, ["job"], False, env, hosts=THREE)
    assert "-hosts n1:2,n2:2,n3:1 -np 5 job" in shlex.join(command)
    command, _ = mpirun_command("mpirun", "Open MPI 4.1", 2, ["job"], False, env)
    assert not {"--host", "-x"} & set(command), "as before without hosts"

"""What a job with parameter servers is told before it starts: options, roles, memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpc_train as ht
from hpc_train import UserError, load_job
from hpc_train.cli.train import _delays
from hpc_train.config.job import strategy_in
from hpc_train.config.run_config import RunOptions
from hpc_train.distributed.parameter_server.open_window import _check_room
from hpc_train.distributed.roles import Roles
from hpc_train.strategies import strategy_of

JOB = """\
name: fashion_mnist
model: model.py:build_model
data:
  train: {shards: data/train-*.h5}
  eval: {shards: data/test-*.h5}
run:
  strategy: STRATEGY
  KEY
train: {max_steps: 2000}
"""


def job_file(folder: Path, strategy: str, *keys: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB.replace("STRATEGY", strategy).replace("KEY", "\n  ".join(keys)))
    return path


@pytest.mark.parametrize(
    ("strategy", "keys", "said"),
    [
        ("sync", ["parameter_servers: 2"], "8: run.parameter_servers: `parameter_servers` is for `strategy: async`"),
        ("sync", ["max_staleness: 0"], "8: run.max_staleness: `max_staleness` is for `strategy: async`"),
        ("sync", ["prefetch_parameters: true"], "8: run.prefetch_parameters: .* is for `strategy: async`"),
        ("sync", ["scale_lr_by_staleness: true"], "8: run.scale_lr_by_staleness: .* is for `strategy: async`"),
        ("async", ["max_staleness: -1"], "8: run.max_staleness: -1 is not allowed; .*greater than or equal to 0"),
        ("async", ["max_staleness: 1.5"], "8: run.max_staleness: 1.5 is not allowed; .*a whole number"),
        ("async", ["parameter_servers: 0"], "8: run.parameter_servers: 0 is not allowed; .*greater than 0"),
        ("async", ["parameter_servers: two"], "8: run.parameter_servers: 'two' is not allowed; .*a whole number"),
        (
            "async",
            ["max_staleness: 0", "prefetch_parameters: true"],
            "9: run.prefetch_parameters: `prefetch_parameters` and `max_staleness: 0`, .*, exclude each other",
        ),
        (
            "async",
            ["max_staleness: 0", "scale_lr_by_staleness: true"],
            "9: run.scale_lr_by_staleness: `scale_lr_by_staleness` and `max_staleness: 0`, .*, exclude each other",
        ),
        ("sync", ["on_lost_worker: continue"], "8: run.on_lost_worker: .* is for `strategy: async`; .*--max-restarts"),
        (
            "async",
            ["max_staleness: 0", "on_lost_worker: continue"],
            "9: run.on_lost_worker: `on_lost_worker: continue` and `max_staleness: 0`, .*, exclude each other",
        ),
        (
            "async",
            ["on_lost_worker: stay"],
            "8: run.on_lost_worker: 'stay' is not allowed; allowed: 'end' or 'continue'",
        ),
        ("async", ["on_nan: rollback"], "8: run.on_nan: `rollback` is for `strategy: sync`: .* take `skip`"),
        ("async", ["check_replicas_steps: 5"], "8: run.check_replicas_steps: .* is for `strategy: sync`"),
        ("async", ["max_stalenes: 1"], "8: run.max_stalenes: unknown key; did you mean `max_staleness`?"),
        ("asynk", [], "7: run.strategy: 'asynk' is not allowed; allowed: 'sync' or 'async'; did you mean `async`?"),
    ],
)
def test_job_files_that_are_refused(tmp_path: Path, strategy: str, keys: list[str], said: str) -> None:
    path = job_file(tmp_path, strategy, *keys)
    with pytest.raises(UserError) as caught:
        load_job(path)
    (line,) = str(caught.value).splitlines()
    assert re.match(f"{re.escape(str(path))}:{said.replace('?', '[?]')}", line), line


def test_options_are_allowed_in_any_order(tmp_path: Path) -> None:
    path = job_file(tmp_path, "sync", "parameter_servers: 1")
    assert load_job(path).run.parameter_servers == 1
    path.write_text(JOB.replace("  KEY\n", "").replace("STRATEGY", "async").replace("run:\n", "run:\n  on_nan: skip\n"))
    assert load_job(path).run.strategy == "async"
    path.write_text(JOB.replace("STRATEGY\n  KEY", "sync").replace("run:\n", "run:\n  max_staleness: 3\n"))
    with pytest.raises(UserError, match=r"7: run.max_staleness: .* is for `strategy: async`"):
        load_job(path)


def test_all_options_together(tmp_path: Path) -> None:
    keys = ["parameter_servers: 3", "max_staleness: 4", "prefetch_parameters: true", "scale_lr_by_staleness: true"]
    run = load_job(job_file(tmp_path, "async", *keys)).run_config(tmp_path / "run")
    assert (run.strategy, run.parameter_servers, run.max_staleness) == ("async", 3, 4)
    assert (run.prefetch_parameters, run.scale_lr_by_staleness) == (True, True)
    assert (ht.RunConfig("x", strategy="async").max_staleness, ht.RunConfig("x").parameter_servers) == (None, 1)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        (JOB.replace("STRATEGY\n  KEY", "async"), "async"),
        (JOB.replace("STRATEGY\n  KEY", "sync"), "sync"),
        ("name: a\n", "sync"),
        ("run: [async]\n", "sync"),
        ("run: {strategy: [async]}\n", "sync"),
        ("strategy: async\n", "sync"),
        ("- run\n", "sync"),
        ("run: {strategy: async\n", "sync"),
        ("run: {strategy: async}\nnonsense: 1\n", "async"),
        ("run: {strategy: asynk}\n", "sync"),
        ("", "sync"),
    ],
)
def test_what_a_rank_reads_before_mpi_starts(tmp_path: Path, text: str, strategy: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert strategy_in(tmp_path / "job.yaml") == strategy


def test_a_rank_that_cannot_read_the_job_file_starts_all_the_same(tmp_path: Path) -> None:
    assert strategy_in(tmp_path / "job.yaml") == "sync"
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    assert strategy_in(tmp_path / "binary") == "sync"
    assert strategy_in(tmp_path) == "sync"


def test_how_threads_call_mpi() -> None:
    assert [strategy_of(strategy).threads for strategy in ("sync", "async")] == ["multiple", "serialized"]


@given(st.integers(2, 200), st.data())
def test_roles(size: int, data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, size - 1))
    roles = strategy_of("async").roles(size, RunOptions(strategy="async", parameter_servers=servers))
    told = [roles.role_of(rank) for rank in range(size)]
    assert told == ["chief", *["server"] * (servers - 1), *["worker"] * (size - servers)]
    assert [roles.serves(rank) for rank in range(size)] == [role != "worker" for role in told]
    assert roles.readers == size - servers
    assert [roles.part_of(rank) for rank in range(servers, size)] == list(range(roles.readers))


def test_roles_without_servers() -> None:
    roles = Roles(3)
    assert [roles.role_of(rank) for rank in range(3)] == ["chief", "worker", "worker"]
    assert (roles.readers, [roles.part_of(rank) for rank in range(3)]) == (3, [0, 1, 2])
    assert not any(roles.serves(rank) for rank in range(3))


@given(st.integers(2, 200))
def test_roles_with_a_dedicated_chief(size: int) -> None:
    run = ht.RunConfig("x", chief="dedicated")
    roles = strategy_of(run.strategy).roles(size, run)
    assert [roles.role_of(rank) for rank in range(size)] == ["chief", *["worker"] * (size - 1)]
    assert [roles.trains(rank) for rank in range(size)] == [False, *[True] * (size - 1)]
    assert not any(roles.serves(rank) for rank in range(size))
    assert (roles.idle, roles.readers, roles.servers) == (1, size - 1, 0)
    assert [roles.part_of(rank) for rank in range(size)] == [0, *range(size - 1)]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_chief_of_an_asynchronous_job_is_always_dedicated(size: int) -> None:
    runs = [ht.RunConfig("x", strategy="async", chief=chief) for chief in ("train", "dedicated")]
    assert [strategy_of(run.strategy).least_ranks(run) for run in runs] == [2, 2]
    for run in runs if size > 1 else []:
        assert strategy_of(run.strategy).roles(size, run) == Roles(size, servers=1)
    assert strategy_of("sync").roles(size, ht.RunConfig("x")) == Roles(size)


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({}, 1),
        ({"chief": "dedicated"}, 2),
        ({"strategy": "async"}, 2),
        ({"strategy": "async", "parameter_servers": 3}, 4),
    ],
)
def test_least_ranks(options: dict[str, object], least: int) -> None:
    run = ht.RunConfig("x", **options)
    assert strategy_of(run.strategy).least_ranks(run) == least
    assert strategy_of(run.strategy).roles(least, run).readers == 1
    if least > 1:
        with pytest.raises(UserError, match=f"start at least {least} ranks"):
            strategy_of(run.strategy).roles(least - 1, run)


def test_one_rank_cannot_have_a_dedicated_chief() -> None:
    with pytest.raises(UserError, match=r"run.chief: dedicated leaves no rank to train .* or set chief: train"):
        strategy_of("sync").roles(1, ht.RunConfig("x", chief="dedicated"))


@pytest.mark.parametrize(
    ("size", "servers", "said"),
    [
        (1, 1, "1 rank cannot be split into 1 parameter server and no worker; start at least 2 ranks .*strategy: sync"),
        (1, 2, "1 rank .* 2 parameter servers and no worker; start at least 3 ranks .*fewer parameter_servers"),
        (2, 2, "2 ranks are 2 parameter servers and no worker; start at least 3 ranks"),
        (3, 7, "3 ranks are .*7 parameter servers and no worker; start at least 8 ranks"),
    ],
)
def test_a_job_without_a_worker_is_refused(size: int, servers: int, said: str) -> None:
    with pytest.raises(UserError, match=f"run.parameter_servers: {said}"):
        strategy_of("async").roles(size, RunOptions(strategy="async", parameter_servers=servers))


@pytest.mark.parametrize(
    ("texts", "found"),
    [([], {}), (["2:50"], {2: 0.05}), (["0:0", "12:1500.5"], {0: 0.0, 12: 1.5005}), (["1:5", "1:7"], {1: 0.007})],
)
def test_delays(texts: list[str], found: dict[int, float]) -> None:
    assert _delays(texts) == pytest.approx(found)


@pytest.mark.parametrize(
    "text", ["", "5", "2:", ":50", "a:50", "2:b", "2:50:1", "1.5:3", "-1:50", "2:-1", "2:3600001", "2:nan", "2:inf"]
)
def test_delays_that_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--debug-delay: {re.escape(repr(text))} is not allowed; "):
        _delays([text])


def test_too_little_shared_memory_is_told_before_a_rank_dies_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hpc_train.distributed.parameter_server.open_window.SHARED_FOLDER", str(tmp_path))
    monkeypatch.delenv("OMPI_MCA_osc", raising=False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1024, f_frsize=4096))
    _check_room(1024 * 4096, one_node=True)
    with pytest.raises(UserError, match=r"has 4.* free, but parameters and gradients .* need 8.* --shm-size.* fewer"):
        _check_room(2 * 1024 * 4096, one_node=True)
    _check_room(2 * 1024 * 4096, one_node=False)
    monkeypatch.setenv("OMPI_MCA_osc", "pt2pt")
    _check_room(2 * 1024 * 4096, one_node=True)
    monkeypatch.delenv("OMPI_MCA_osc")
    monkeypatch.setattr("hpc_train.distributed.parameter_server.open_window.SHARED_FOLDER", str(tmp_path / "absent"))
    _check_room(2 * 1024 * 4096, one_node=True)

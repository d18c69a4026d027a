"""Workers that are lost: what a job refuses at its start, and what is saved without them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.tensors import nbytes_of
from hpc_train.errors import UserError
from hpc_train.resilience.lost_ranks import LostRank
from hpc_train.strategies.asynchronous import losses
from hpc_train.strategies.asynchronous.losses import Losses, check_guard
from hpc_train.strategies.asynchronous.parts import carried_places
from hpc_train.strategies.asynchronous.remote_state import RemoteState

CONTINUE = RunConfig(strategy="async", on_lost_worker="continue")
MPICH = "MPICH Version:      4.2.0"


@pytest.mark.parametrize(
    ("library", "guarded", "words"),
    [
        ("Open MPI v4.1.8, package: Open MPI", True, None),
        ("Open MPI v4.1.8, package: Open MPI", False, "set OMPI_MCA_orte_allowed_exit_without_sync=1 before mpirun"),
        (
            "Open MPI v5.0.3, package: x",
            True,
            "needs Open MPI 4, .*; this is Open MPI v5.0.3: load Open MPI 4, or",
        ),
        (MPICH, False, f"needs Open MPI 4, .* this is {MPICH}: "),
    ],
)
def test_what_has_no_guards_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, library: str, guarded: bool, words: str | None
) -> None:
    monkeypatch.setattr(losses, "mpi_library", lambda: library)
    monkeypatch.setattr(losses, "is_guarded", lambda: guarded)
    check_guard(RunConfig(strategy="async"))
    if words is None:
        check_guard(CONTINUE)
    else:
        with pytest.raises(UserError, match=words):
            check_guard(CONTINUE)


@pytest.mark.parametrize(
    ("training", "left", "words"),
    [
        ({0, 1, 2, 3}, 2, "the job goes on with 2 of 4 workers; its next start"),
        ({1, 2, 3}, 1, "the job goes on with 1 of 4 workers; its next start"),  # the input of 0 has ended
        ({2, 3}, 0, "no other worker trains; its next start"),
    ],
)
def test_only_those_that_train_go_on(
    caplog: pytest.LogCaptureFixture, training: set[int], left: int, words: str
) -> None:
    one: Any = Losses.__new__(Losses)
    one._reporter, one._roles = MagicMock(), SimpleNamespace(servers=2, readers=4)
    one._ranks = SimpleNamespace(known=[LostRank(5, "SIGKILL"), LostRank(4, "SIGBUS")])
    one._server = SimpleNamespace(clocks=SimpleNamespace(training=frozenset(training)))
    one._report(one._ranks.known[1], 7)
    assert f"rank 4 was killed by SIGBUS after step 7: {words}" in caplog.text
    one._reporter.metrics.note.assert_called_once_with("lost_rank", 7, rank=4, signal="SIGBUS", left=left)


def saved(carried: list[Any], lost: set[int]) -> tuple[int, float]:
    """Of a random state and an average that workers have carried, what a checkpoint has. -1: as it was."""
    variables = [np.full(1, -1, np.int64), np.full(1, -1, np.float32)]
    offsets, size = carried_places(variables)
    mailboxes: list[np.ndarray | None] = []
    for value in carried:
        box = np.zeros(size, np.uint8)
        for variable, offset in zip(variables, offsets, strict=True):
            own = np.full_like(variable, value or 0)
            box[offset : offset + nbytes_of(variable)] = own.view(np.uint8)
        mailboxes.append(None if value is None else box)
    state: Any = SimpleNamespace(
        _server=SimpleNamespace(carried=mailboxes, lost=lost),
        _carried=variables,
        _copies={id(variable): variable.copy() for variable in variables},
    )
    RemoteState._spread_carried(state)
    random, average = (state._copies[id(variable)][0] for variable in variables)
    return int(random), float(average)


@pytest.mark.parametrize(
    ("carried", "lost", "expected"),
    [
        ([1, 2, 6], set(), (1, 3.0)),
        ([1, 2, 6], {0}, (2, 4.0)),
        ([1, 2, 6], {0, 1}, (6, 6.0)),
        ([1, None, 6], {0}, (-1, 6.0)),  # the first one that is left has carried none yet
        ([None, 2, 6], set(), (-1, 4.0)),
        ([1, 3], {0, 1}, (-1, 2.0)),
        ([None, None], {0}, (-1, -1.0)),
    ],
)
def test_random_states_are_those_of_the_first_worker_that_lives(
    carried: list[Any], lost: set[int], expected: tuple[int, float]
) -> None:
    assert saved(carried, lost) == expected

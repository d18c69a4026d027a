"""The journal of a study: decisions of several processes, in order, each whole."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.files import unforeseen
from hpc_train.telemetry.json_files import finite
from hpc_train.tuning.search import journal as module
from hpc_train.tuning.search.decisions import Changed, Decision, Halted, decision_of, fields_of
from hpc_train.tuning.search.journal import Journal
from tests.studies import DRIVER, decisions_in, judged, left, suggested, taken
from tests.support import REPOSITORY, SOAK, run_program

POINTS = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text())


def numbers(journal: Journal, *trials: int) -> None:
    for trial in trials:
        journal.append(lambda trial=trial: suggested(trial))


@given(st.lists(st.integers(0, 99), max_size=8), POINTS)
def test_what_is_appended_is_read(tmp_path_factory: pytest.TempPathFactory, trials: list[int], point: dict) -> None:
    folder = tmp_path_factory.mktemp("decisions")
    heard: list[Decision] = []
    journal = Journal(folder, heard.append)
    for trial in trials:
        assert journal.append(lambda trial=trial: suggested(trial, point=finite(point))) == heard[-1]
    assert len(journal) == len(trials)
    assert decisions_in(folder) == heard
    assert sorted(path.name for path in folder.iterdir()) == [f"{number:08d}.json" for number in range(len(trials))]


def test_a_decision_that_is_missing_among_others_is_told(tmp_path: Path) -> None:
    numbers(Journal(tmp_path, lambda _: None), 0, 1, 2)
    Journal(tmp_path, lambda _: None).read_whole()
    (tmp_path / "00000001.json").unlink()
    with pytest.raises(UserError, match=r"00000001\.json: is missing, and later decisions are there; to go on"):
        Journal(tmp_path, lambda _: None).read_whole()
    (tmp_path / "00000002.json").unlink()
    Journal(tmp_path, lambda _: None).read_whole()
    with pytest.raises(UserError, match="none: cannot be read: No such file or directory"):
        Journal(tmp_path / "none", lambda _: None).read_whole()


def test_one_who_reads_all_while_others_append_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Decision] = []
    journal, other = Journal(tmp_path, heard.append), Journal(tmp_path, lambda _: None)
    listed = os.listdir

    def listing(folder: Path) -> list[str]:
        numbers(other, len(other), len(other) + 1)
        return listed(folder)

    monkeypatch.setattr(module.os, "listdir", listing)
    journal.read_whole()
    assert len(heard) >= 2


@pytest.mark.parametrize(
    "decision",
    [
        suggested(3, point={"params.a": [1, {"b": None}]}),
        taken(1, to_the_end=True),
        judged(1, 2, None, "paused"),
        left(4, "failed", step=9, value=0.5, why="…\n"),
        Changed(time=1.0, max_trials=5),
        Halted(time=1.0, halted=True, why="x"),
    ],
)
def test_each_decision_travels_as_json(decision: Decision) -> None:
    assert decision_of(json.loads(json.dumps(fields_of(decision)))) == decision
    assert decision_of({**fields_of(decision), "of_another_version": 1}) == decision


def test_one_who_appends_knows_what_others_have_decided(tmp_path: Path) -> None:
    ours: list[Decision] = []
    journal, other = Journal(tmp_path, ours.append), Journal(tmp_path, lambda _: None)
    numbers(other, 0, 1)
    asked = []

    def decide() -> Decision:
        asked.append(len(ours))
        if len(asked) == 1:
            numbers(other, 2)  # which comes between the decision and its writing
        return suggested(len(ours))

    assert journal.append(decide) == suggested(3)
    assert asked == [2, 3]
    other.refresh()
    assert len(other) == 4


def test_nothing_may_be_decided(tmp_path: Path) -> None:
    assert Journal(tmp_path, lambda _: None).append(lambda: None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_is_reported_as_missing_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS does where its first answer was lost."""
    link = os.link

    def twice(*args: object, **kwargs: object) -> None:
        link(*args, **kwargs)  # type: ignore[arg-type]
        link(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", twice)
    heard: list[Decision] = []
    numbers(Journal(tmp_path, heard.append), 0, 1)
    assert heard == [suggested(0), suggested(1)] == decisions_in(tmp_path)


def test_a_decision_that_another_node_does_not_see_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, other = Journal(tmp_path, lambda _: None), Journal(tmp_path, lambda _: None)
    numbers(other, 0)
    read, hidden = module.read_bytes, [2]

    def seen(path: Path, limit: int) -> bytes:
        if hidden[0]:
            hidden[0] -= 1
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return read(path, limit)

    monkeypatch.setattr(module, "read_bytes", seen)
    monkeypatch.setattr(module, "POLL_SECS", 0)
    numbers(journal, 1)
    assert hidden == [0]
    assert decisions_in(tmp_path) == [suggested(0), suggested(1)]

    numbers(other, 2)
    hidden[0] = 10**9
    monkeypatch.setattr(module, "SEEN_SECS", -1)
    with pytest.raises(UserError, match=r"00000002\.json: is there for other processes, but cannot be seen from here"):
        numbers(journal, 3)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 10_000,
        '{"kind": "suggested"}',
        '{"kind": "decided", "time": 0}',
        json.dumps(fields_of(suggested(0)) | {"trial": -1}),
        json.dumps(fields_of(suggested(0)) | {"driver": "../../x"}),
        json.dumps(fields_of(left(0, "completed")) | {"value": "x"}),
        json.dumps(fields_of(left(0, "completed"))).replace("null", "NaN"),
        json.dumps(fields_of(judged(0, 0, 1.0))).replace("0.0", "1e999"),
        "{}" + " " * (1 << 20),
    ],
    ids=lambda content: content[:40],
)
def test_a_damaged_decision_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    numbers(Journal(tmp_path, lambda _: None), 0)
    (tmp_path / "00000001.json").write_text(content)
    with pytest.raises(UserError) as caught:
        decisions_in(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/00000001.json: ")
    with pytest.raises(UserError, match=r"00000001\.json"):
        numbers(Journal(tmp_path, lambda _: None), 1)
    assert not (tmp_path / "00000002.json").exists()


def test_a_decision_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps(fields_of(suggested(0))))
    (tmp_path / "00000000.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"00000000\.json: cannot be read"):
        decisions_in(tmp_path)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_folder_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UserError) as caught:
        numbers(Journal(tmp_path, lambda _: None), 0)
    assert str(caught.value).startswith(f"{tmp_path}: a decision cannot be written: its file system has no hard links")
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_what_was_left_by_processes_that_were_killed_is_swept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, lambda _: None)
    numbers(journal, 0)
    old, new = (unforeseen(tmp_path / "00000001.json") for _ in range(2))
    for path in (old, new):
        path.write_text("{")
    os.utime(old, (0, 0))
    journal.sweep()
    assert sorted(tmp_path.iterdir()) == sorted([new, tmp_path / "00000000.json"])


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match=r"a decision cannot be written: No space left on device"):
        numbers(Journal(tmp_path, lambda _: None), 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.random
@pytest.mark.parametrize("seed", range(SOAK if SOAK > 1 else 1))
def test_processes_that_append_at_once_and_are_killed_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    processes, each, kills = 8, 25, 12
    program = REPOSITORY / "tests" / "programs" / "deciders.py"
    words = [sys.executable, program, "append", tmp_path, processes, each, kills, seed]
    done = run_program([*map(str, words)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "some were killed"
    found = Counter(decision.source for decision in decisions_in(tmp_path))  # type: ignore[union-attr]
    assert found == Counter(f"{place}/{number}" for place in range(processes) for number in range(each))
    assert {decision.driver for decision in decisions_in(tmp_path)} == {DRIVER}  # type: ignore[union-attr]

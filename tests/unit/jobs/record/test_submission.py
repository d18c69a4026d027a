"""What a job-dir says of its submission, the names of jobs, and how they are found again."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.resources import Resources
from hpc_train.errors import UserError
from hpc_train.jobs.record.job_dirs import (
    check_name,
    find_job,
    is_job_dir,
    job_dirs,
    make_job_dir,
    name_at,
    number_of,
    root_of,
)
from hpc_train.jobs.record.submission import Submission, cancelled_by, note_cancelled, read_submission
from hpc_train.telemetry.status import JOB_NUMBER

NAME = r"[A-Za-z][A-Za-z0-9_]{0,127}"


@pytest.fixture(scope="module", autouse=True)
def _no_summer_time() -> Iterator[None]:
    """Local time goes on evenly: names have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def make(**changes: Any) -> Submission:
    first = Submission(
        token="0123456789abcdef",
        name="tiny_1",
        kind="model",
        backend="slurm",
        submitted=1e9,
        user="me",
        host="login",
        job_file="/home/me/job.yaml",
        entry="job.yaml",
        settings=(),
        resources=Resources(tier="BASIC").model_dump(mode="json"),
        code={"files": 3},
        version="0.1",
    )
    return replace(first, **changes)


def submitted(root: Path, name: str, job_id: str | None, when: float = 1e9) -> Path:
    """A job-dir under `root`."""
    (root / name).mkdir(parents=True)
    make(name=name, job_id=job_id, submitted=when).save(root / name)
    return root / name


@given(st.from_regex(NAME, fullmatch=True), st.floats(0, 4e9), st.floats(0, 4e9))
def test_a_name_with_its_time_is_allowed_and_sorts_by_it(name: str, one: float, other: float) -> None:
    first, second = sorted((one, other))
    names = [name_at(name, first), name_at(name, second)]
    for got in names:
        assert check_name(got) == got
        assert len(got) <= 128
        assert got.startswith(name[:112])
    assert names == sorted(names)
    if second - first >= 1:
        assert names[0] != names[1]


def test_a_name_with_its_time() -> None:
    when = datetime(2026, 11, 20, 8, 15, 0, 999_999).timestamp()
    assert name_at("fashion_mnist", when) == "fashion_mnist_20261120_081500"
    assert name_at("a" * 128, when) == "a" * 112 + "_20261120_081500"


@given(st.one_of(st.from_regex(NAME, fullmatch=True), st.text(max_size=130), st.from_regex(NAME)))
def test_names(name: str) -> None:
    if re.fullmatch(NAME, name, re.ASCII):
        assert check_name(name) == name
    else:
        with pytest.raises(UserError, match=r"--name: .* is not allowed as the name of a job; allowed: a letter, then"):
            check_name(name)


@pytest.mark.parametrize("name", ["", "1a", "_a", "a-b", "a b", "a\n", "../a", "a/b", "ä", "a" * 129, "$(x)", "a.b"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_name(name, "--job-dir")
    assert str(caught.value).startswith(f"--job-dir: {name!r} is not allowed")


texts = (st.text(max_size=20) | st.binary(max_size=5).map(os.fsdecode)).filter(lambda text: "\0" not in text)
"""A path may be no UTF-8."""
numbers = st.from_regex(JOB_NUMBER, fullmatch=True)


@given(
    name=st.from_regex(NAME, fullmatch=True),
    job_file=texts,
    settings=st.lists(texts, max_size=3).map(tuple),
    args=st.lists(texts, max_size=3).map(tuple),
    job_id=st.none() | numbers,
    after=st.none() | numbers,
    submitted=st.floats(0, 4e9),
)
def test_what_is_saved_is_read_again(tmp_path_factory: pytest.TempPathFactory, **fields: Any) -> None:
    job_dir = tmp_path_factory.getbasetemp()
    written = make(**fields)
    written.save(job_dir)
    assert read_submission(job_dir) == written


def test_its_number_comes_later(tmp_path: Path) -> None:
    first = make()
    assert (first.job_id, first.with_id("7").job_id, first.job_id) == (None, "7", None)
    first.with_id("7").save(tmp_path)
    assert read_submission(tmp_path) == first.with_id("7")
    assert [path.name for path in tmp_path.iterdir()] == ["submission.json"]


def test_what_it_wants() -> None:
    wants = Resources(tier="LARGE", nodes=2, ranks_per_node=4, time=90, environment={"A": "1"}, sbatch=("--x",))
    assert make(resources=json.loads(wants.model_dump_json())).wants == wants


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "5", '"token"', "{}", '{"token": "x"}', "[" * 100, "\xff", '{"settings": 5}',
     json.dumps({**asdict(make()), "settings": None}), json.dumps({**asdict(make()), "args": 3})],
)  # fmt: skip
def test_a_broken_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "submission.json").write_bytes(text.encode("latin-1"))
    assert read_submission(tmp_path) is None
    assert number_of(tmp_path) is None


def test_no_file_is_none(tmp_path: Path) -> None:
    assert read_submission(tmp_path) is None
    assert read_submission(tmp_path / "absent") is None
    (tmp_path / "submission.json").mkdir()
    assert read_submission(tmp_path) is None


def test_files_of_other_versions(tmp_path: Path) -> None:
    fields = {**asdict(make(args=("a",))), "of_the_future": [1]}
    for name in ("after", "after_dir", "job_id"):
        del fields[name]
    (tmp_path / "submission.json").write_text(json.dumps(fields))
    assert read_submission(tmp_path) == make(args=("a",))


def test_a_root_is_named_by_option_variable_or_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert root_of(Path("a"), {"HPC_TRAIN_ROOT": "/b"}) == tmp_path / "a"
    assert root_of(None, {"HPC_TRAIN_ROOT": "/b"}) == Path("/b")
    assert root_of(None, {"HPC_TRAIN_ROOT": "~/b"}) == Path("/home/me/b")
    assert root_of(None, {"HPC_TRAIN_ROOT": "~nobody_here"}) == tmp_path / "~nobody_here"
    assert root_of(None, {"HPC_TRAIN_ROOT": ""}) == root_of(None, {}) == tmp_path / "runs"


def test_a_job_dir_is_made_for_its_owner(tmp_path: Path) -> None:
    make_job_dir(tmp_path / "new/root/a")
    assert stat.S_IMODE((tmp_path / "new/root/a").stat().st_mode) == 0o700


def test_a_name_in_use(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("mine")
    (tmp_path / "b").write_text("mine")
    (tmp_path / "c").symlink_to("nowhere")
    (tmp_path / "d").mkdir()
    for name in "abcd":
        with pytest.raises(UserError, match=rf"{name}: the name is in use; take another --name$"):
            make_job_dir(tmp_path / name)
    (tmp_path / "d/status.json").write_text("{}")
    with pytest.raises(UserError, match=r"or let the job in it go on: hpc-train resume .*/d$"):
        make_job_dir(tmp_path / "d")
    assert (tmp_path / "a/x").read_text() == (tmp_path / "b").read_text() == "mine"


def test_a_job_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/a: the job-dir cannot be made: .*/file is not a folder"):
        make_job_dir(tmp_path / "file/a")
    with pytest.raises(UserError, match=r"file/a/b: the job-dir cannot be made: .*/file/a is not a folder"):
        make_job_dir(tmp_path / "file/a/b")
    with pytest.raises(UserError, match="the job-dir cannot be made: File name too long"):
        make_job_dir(tmp_path / ("a" * 300))


def test_job_dirs_are_folders_in_which_a_job_was(tmp_path: Path) -> None:
    submitted(tmp_path, "c_2", "5")
    submitted(tmp_path, "a_1", None)
    (tmp_path / "b_by_hand").mkdir()
    (tmp_path / "b_by_hand/status.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "d_link").symlink_to("a_1")
    (tmp_path / "e_dangling").symlink_to("nowhere")
    assert [path.name for path in job_dirs(tmp_path)] == ["a_1", "b_by_hand", "c_2", "d_link"]
    assert list(job_dirs(tmp_path / "absent")) == list(job_dirs(tmp_path / "file")) == []
    assert not is_job_dir(tmp_path)


def test_a_job_is_found_by_name_job_dir_or_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    job, array = submitted(root, "a_1", "12"), submitted(root, "b_1", "13_2")
    for given_name in ("a_1", "12", str(job)):
        assert find_job(given_name, root) == job
    assert find_job("13_2", root) == array
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given_name in ("runs/a_1", "./runs/a_1/", "~/runs/a_1"):
        assert find_job(given_name, Path("/elsewhere")) == job
    assert find_job("a_1", Path("runs")) == job, "absolute"


def test_the_number_of_a_job_that_was_started_by_hand(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/status.json").write_text(json.dumps({"job_id": "30"}))
    assert find_job("30", tmp_path) == tmp_path / "mine"
    submitted(tmp_path, "other", "31")
    (tmp_path / "other/status.json").write_text(json.dumps({"job_id": "29"}))
    assert number_of(tmp_path / "other") == "31", "what it was submitted as; its status is of an earlier one"


def test_of_two_jobs_with_one_number_the_newest_is_meant(tmp_path: Path) -> None:
    submitted(tmp_path, "z_old", "1", when=1e9)
    newest = submitted(tmp_path, "m_new", "1", when=1e9 + 60)
    submitted(tmp_path, "a_old", "1", when=1e9 + 30)
    (tmp_path / "by_hand").mkdir()
    (tmp_path / "by_hand/status.json").write_text(json.dumps({"job_id": "1"}))
    assert find_job("1", tmp_path) == newest


def test_the_queue_is_asked_for_numbers_that_the_root_does_not_have(tmp_path: Path) -> None:
    here, there = submitted(tmp_path / "root", "a_1", "1"), submitted(tmp_path / "other", "b_1", "2")
    asked: list[str] = []

    def queue(number: str) -> Path | None:
        asked.append(number)
        return {"2": there, "3": tmp_path / "gone"}.get(number)

    assert find_job("1", tmp_path / "root", queue) == here
    assert find_job("2", tmp_path / "root", queue) == there
    assert asked == ["2"]
    for number in ("3", "4"):
        with pytest.raises(UserError, match=f"{number}: no such job: .* nor is it the number of one"):
            find_job(number, tmp_path / "root", queue)
    with pytest.raises(UserError):
        find_job("b_1", tmp_path / "root", queue)
    assert asked == ["2", "3", "4"]


@pytest.mark.parametrize("name", ["absent", "", ".", "1_x", "a" * 5000, "[red]", "file", "~nobody_here/a"])
def test_no_such_job(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no such job: .*`hpc-train list` names those in .*HPC_TRAIN_ROOT"):
        find_job(name, tmp_path)


def test_a_cancelled_job(tmp_path: Path) -> None:
    assert cancelled_by(tmp_path, make()) is None
    note_cancelled(tmp_path, "0123456789abcdef", "somebody")
    assert cancelled_by(tmp_path, make()) == "somebody"
    assert json.loads((tmp_path / "cancelled.json").read_text())["time"] == pytest.approx(time.time(), abs=600)
    assert cancelled_by(tmp_path, make(token="t1")) is None, "another submission in the same job-dir"
    assert cancelled_by(tmp_path, None) == "somebody"
    note_cancelled(tmp_path, None, "somebody")
    assert cancelled_by(tmp_path, make()) is None
    assert cancelled_by(tmp_path, None) == "somebody"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"by"', "{}", '{"token": "0123456789abcdef"}', '{"by": "x"}', "\xff"]
)
def test_a_broken_mark_does_not_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "cancelled.json").write_bytes(text.encode("latin-1"))
    assert cancelled_by(tmp_path, make()) is None

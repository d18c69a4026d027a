"""What hpc-train fit is asked for becomes the words of other commands; options that exclude each other are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import UserError
from hpc_train.jobs.fit.request import FitRequest
from tests.pages import parse


def request(**options: Any) -> FitRequest:
    return FitRequest(**{"files": ("a.csv", "b.csv"), "label": "y", **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["--label=y", "--split=0.2"]),
        ({"split": 0.1, "seed": 3}, ["--label=y", "--split=0.1", "--seed=3"]),
        ({"split_by": "who"}, ["--label=y", "--split-by=who"]),
        ({"time": "sold", "split": 0.3}, ["--label=y", "--split=0.3", "--time=sold"]),
        ({"eval": ("c.csv",)}, ["--label=y"]),
        (
            {"task": "counts", "columns": "a,b", "separator": ";", "missing": "-", "eval": ("c.csv",)},
            ["--label=y", "--task=counts", "--columns=a,b", "--separator=;", "--missing=-"],
        ),
        ({"most_values": 9}, ["--label=y", "--most-values=9", "--split=0.2"]),
        ({"label": "--odd name"}, ["--label=--odd name", "--split=0.2"]),
    ],
)  # fmt: skip
def test_the_schema_is_found_by_a_command_that_there_is(options: dict[str, Any], expected: list[str]) -> None:
    words = request(**options).schema_words(Path("out/schema.yaml"))
    assert words == ["schema", "a.csv", "b.csv", *expected, "--out=out/schema.yaml"]
    parse(words)


def test_shards_are_made_by_commands_that_there_are() -> None:
    schema = Path("out/schema.yaml")
    for rows, shards in ((800, []), (799, ["--shards=7"]), (2, ["--shards=1"])):
        (words,) = request().shard_words(Path("out/data"), schema, rows)
        assert words == ["shard", "out/data/", "a.csv", "b.csv", "--schema=out/schema.yaml", *shards, "--split"]
    with_eval = list(request(eval=("c.csv", "d.csv")).shard_words(Path("out/data"), schema, 10**6))
    assert with_eval == [
        ["shard", "out/data/train", "a.csv", "b.csv", "--schema=out/schema.yaml"],
        ["shard", "out/data/test", "c.csv", "d.csv", "--schema=out/schema.yaml", "--shards=1"],
    ]
    for words in with_eval:
        parse(words)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"label": None}, "--label COLUMN is missing"),
        ({"schema": Path("s.yaml")}, "--label: with --schema, that says it"),
        ({"label": None, "schema": Path("s.yaml"), "split_by": "a"}, "--split-by: with --schema"),
        ({"eval": ("c.csv",), "split": 0.1}, "--split: with --eval"),
        ({"eval": ("c.csv",), "time": "b"}, "--time: with --eval"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as refused:
        request(**options)
    assert "\n" not in str(refused.value)


def test_files_are_never_taken_for_options() -> None:
    odd = FitRequest(files=("--force",), eval=("-x.csv",), label="y")
    assert odd.schema_words(Path("s.yaml"))[1] == "./--force"
    assert [words[2] for words in odd.shard_words(Path("data"), Path("s.yaml"), 9)] == ["./--force", "./-x.csv"]


def test_what_is_kept_of_a_request_is_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = request(split_by="who", settings=("train.max_steps=3",), ranks=2).to_json()
    assert kept == {
        "files": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")],
        "model": "dnn",
        "label": "y",
        "split-by": "who",
        "set": ["train.max_steps=3"],
        "ranks": 2,
    }
    assert request(label=None, schema=Path("s.yaml")).to_json()["schema"] == str(tmp_path / "s.yaml")

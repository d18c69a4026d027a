"""What a list of jobs is sorted by, and shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hpc_train.cli.app import app
from hpc_train.config.yaml_loader import dump_yaml
from tests.job_dirs import record, write_job
from tests.unit.jobs.submissions import a_submission


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "runs"
    for name, rate, accuracy, best in (("a", 0.1, 0.5, 0.9), ("b", 0.01, 0.75, 0.75), ("c", 1e-05, None, None)):
        evaluation = (
            {} if accuracy is None else {"evaluation": {"step": 20, "loss": 1 - accuracy, "accuracy": accuracy}}
        )
        records = [record("start", 0, 1.0), record("train", 10, 2.0, loss=1.0)]
        records += [record("eval", 10, 2.0, accuracy=best), record("eval", 20, 3.0, accuracy=accuracy)] if best else []
        status = {"state": "succeeded", "step": 20, "max_steps": 20, "loss": rate, "started": 1e9, **evaluation}
        job = {"name": "x", "params": {"learning_rate": rate, "deep": {"er": name}}, "run": {"on_nan": "halt"}}
        write_job(folder / name, records, status, job)
    return folder


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["list", "--root", str(root), *arguments])


def rows(root: Path, *arguments: str) -> list[list[str]]:
    done = run(root, *arguments)
    assert done.exit_code == 0, done.output
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--sort", "accuracy"], "bac"),
        (["--sort", "accuracy", "--reverse"], "abc"),
        (["--sort", "evaluation.loss"], "bac"),
        (["--sort", "best.accuracy"], "abc"),
        (["--sort", "params.learning_rate"], "cba"),
        (["--sort", "params.learning_rate", "--reverse"], "abc"),
        (["--sort", "loss"], "cba"),
        (["--sort", "name", "--reverse"], "cba"),
        (["--reverse"], "cba"),
    ],
)
def test_numbers_count_as_such_metrics_come_best_first_and_what_is_missing_last(
    root: Path, arguments: list[str], names: str
) -> None:
    assert [row[0] for row in rows(root, *arguments)[1:]] == list(names)


def test_a_job_says_itself_what_is_good(root: Path) -> None:
    for path in root.iterdir():
        job = json.dumps({"name": "x", "run": {"best_metric": "accuracy", "best_mode": "min"}})
        (path / "job.yaml").write_text(job)
    assert [row[0] for row in rows(root, "--sort", "accuracy")[1:]] == list("abc")


def test_columns_are_settings_metrics_best_values_and_what_the_table_has(root: Path) -> None:
    asked = "state,params.*,accuracy,best.accuracy,run.on_nan,step,started"
    head, first, _, last = rows(root, "--columns", asked)
    assert head == [
        *("name", "state", "params.deep.er", "params.learning_rate", "accuracy", "best.accuracy", "run.on_nan"),
        *("step", "started"),
    ]
    assert first[:8] == ["a", "SUCCEEDED", "a", "0.1", "0.5", "0.9", "halt", "20"] and last[4:6] == ["–", "–"]
    found = [json.loads(line) for line in run(root, "--columns", asked, "--json").stdout.splitlines()]
    assert found[0]["columns"] == {
        "state": "SUCCEEDED", "params.learning_rate": 0.1, "params.deep.er": "a", "accuracy": 0.5,
        "best.accuracy": 0.9, "run.on_nan": "halt", "step": 20, "started": 1e9,
    }  # fmt: skip
    assert [each["columns"]["best.accuracy"] for each in found] == [0.9, 0.75, None]
    assert "columns" not in json.loads(run(root, "--json").stdout.splitlines()[0])


def test_what_the_table_lacks_is_shown_where_it_is_sorted_by(root: Path) -> None:
    head, *_ = rows(root, "--sort", "params.learning_rate")
    assert head[:3] == ["name", "params.learning_rate", "state"]
    assert rows(root, "--sort", "loss")[0].count("loss") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sort", "acuracy"], ("--sort: no job here has 'acuracy'; did you mean `accuracy`?", "best.accuracy")),
        (["--columns", "name,learning_rate"], ("'learning_rate'; did you mean `params.learning_rate`?",)),
        (["--columns", "name,,loss"], ("--columns: 'name,,loss' is not allowed",)),
        (["--sort", "params.*"], ("--sort: 'params.*' names several",)),
        (["--columns", "nothing.*"], ("no job here has 'nothing.*'",)),
        (["--sort", "\x1b[31m"], ("no job here has '\\x1b[31m'",)),
    ],
)
def test_what_no_job_has_is_refused_with_what_there_is(root: Path, arguments: list[str], said: tuple[str, ...]) -> None:
    done = run(root, *arguments)
    assert done.exit_code == 2 and not done.stdout
    assert all(text in done.stderr for text in said), done.stderr


def test_a_job_that_waits_has_the_settings_that_it_was_submitted_with(root: Path) -> None:
    waits = root / "waits"
    (waits / "code").mkdir(parents=True)
    job: dict[str, Any] = {"params": {"learning_rate": 1}, "resources": {"environment": {"TOKEN": "secret"}}}
    (waits / "code" / "job.yaml").write_text(dump_yaml(job))
    a_submission(name="waits", settings=("params.learning_rate=0.5",)).save(waits)
    done = run(root, "--columns", "params.learning_rate,resources.*", "--json")
    assert "no job here has 'resources.*'" in done.stderr and "secret" not in done.output
    assert rows(root, "--columns", "params.learning_rate")[-1] == ["waits", "0.5"]


def test_the_exports_of_a_job_dir_that_was_renamed_lie_in_it(root: Path) -> None:
    made, elsewhere = root / "a" / "export" / "final" / "17", "/old/a/export/final/18"
    made.mkdir(parents=True)
    status = {"state": "succeeded", "exports": [str(made), elsewhere]}
    write_job(root / "a", [], status).rename(root / "renamed")
    found = [json.loads(line) for line in run(root, "--json").stdout.splitlines()]
    assert found[-1]["exports"] == [str(root / "renamed/export/final/17"), elsewhere]


def test_what_others_wrote_cannot_act_on_the_terminal(root: Path) -> None:
    status = {"state": "succeeded", "evaluation": {"\x1b[2J": 0.5}}
    write_job(root / "d\x1b[2J", [], status, {"params": {"a\x1b[2J": "b\n\x1b[2J", "[red]": "[/]"}})
    done = run(root, "--columns", "params.*,evaluation")
    assert done.exit_code == 0 and "\x1b" not in done.output and len(done.stdout.splitlines()) == 5, done.output
    assert "params.[red]" in done.stdout

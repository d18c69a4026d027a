"""report.html of a study: complete, well formed, bounded, and nothing in it but text of others as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from hpc_train.cli.app import app
from hpc_train.tuning.begin import open_study
from hpc_train.tuning.report.page import study_page, write_study_report
from hpc_train.tuning.search.decisions import Left, Suggested
from tests.job_dirs import NASTY
from tests.study_runs import BEGAN, SPACE, make_study, run_trials

NOW = BEGAN + 100_000
SECTIONS = ["best", "progress", "space", "keys", "trials"]


class Page(HTMLParser):
    """The texts of a page by tag, its sections, and its tables as rows of cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sections, self.tables, self.texts = [], [], [], []
        self._cell = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "section" and dict(attributes).get("id"):
            self.sections.append(dict(attributes)["id"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = tag

    def handle_endtag(self, tag):
        if tag == self._cell:
            self._cell = None

    def handle_data(self, data):
        self.texts.append(data)
        if self._cell:
            self.tables[-1][-1][-1] += data

    @property
    def trials(self):
        """The table of trials: a mapping for each row."""
        header, *rows = self.tables[-1]
        return [dict(zip(header, row, strict=True)) for row in rows]


def page_of(study):
    text = study_page(study, "digits", NOW)
    assert text.isascii() and len(text) < 5_000_000
    for svg in re.findall("<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(re.sub(r"&(?!amp;|lt;|gt;|quot;|#)", "&amp;", svg))
    assert not re.search(r"nan|inf\b|None", "".join(re.findall(r'(?:d|x|y|points)="[^"]*"', text)))
    found = Page(text)
    assert "script" not in found.tags
    return found


@pytest.mark.parametrize("rule", ["asha", "median", "none"])
def test_a_page_has_all_that_is_known(tmp_path, rule):
    study = run_trials(make_study(tmp_path, max_trials=27, early_stopping=rule), fails=lambda number: number == 3)
    found = page_of(study)
    stops = ["early-stopping"] if rule != "none" else []
    assert found.sections == [*SECTIONS[:-1], *stops, "trials"]
    assert len(found.trials) == 27 and "27 of 27" in found.texts
    states = {row["trial"]: row["state"] for row in found.trials}
    assert states == {trial.name: trial.state for trial in study.state.trials}
    goals = [float(row["accuracy"]) for row in found.trials if row["accuracy"] != "–"]
    assert goals == sorted(goals, reverse=True)
    assert goals[0] == pytest.approx(study.state.best.value, rel=1e-4)
    for row in found.trials:
        point = study.state.trials[int(row["trial"])].point
        assert row["params.layers"] == json.dumps(point["params.layers"])
        assert (row["params.momentum"] == "–") == ("params.momentum" not in point)
    text = " ".join(found.texts)
    assert ("out of memory in 3" in text) == (states["0003"] == "failed")
    assert ("steps were trained" in text) == bool(stops)


def test_a_population_has_its_lineage(tmp_path):
    study = run_trials(make_study(tmp_path, population={"size": 8}, max_trials=None))
    found, text = page_of(study), " ".join(page_of(study).texts)
    assert found.sections == [*SECTIONS[:-1], "early-stopping", "trials"]
    rows = {row["trial"]: row for row in found.trials}
    forks = [trial for trial in study.state.trials if trial.lineage is not None]
    assert len(forks) > 3
    for trial in study.state.trials:
        lineage = trial.lineage
        begins = f"from {lineage.parent:04d} at step {lineage.step}" if lineage is not None else ""
        assert rows[trial.name]["begins"] == begins
        assert pytest.approx(float(rows[trial.name]["accuracy"])) != 0.987, "what its parent had come to"
    trained = sum(trial.step - trial.begun_at for trial in study.state.trials)
    assert f"{trained:,} steps were trained" in text and "a population of 8" in text
    assert f"{len(forks)} trials went on from the checkpoint of another one." in text
    assert "succeeded" in found.texts and not any("Early stopping" in part for part in found.texts)


def test_a_population_that_was_interrupted_is_not_over(tmp_path):
    found = page_of(run_trials(make_study(tmp_path, population={"size": 8}, max_trials=100), most=9))
    assert "stopped" in found.texts and "succeeded" not in found.texts


@pytest.mark.parametrize(
    ("trials", "measure", "sections"),
    [(0, None, []), (1, None, SECTIONS), (11, lambda *_: None, ["trials"]), (4, lambda *_: 0.5, SECTIONS)],
    ids=["no trial", "one trial", "no number", "all the same"],
)
def test_however_little_there_is(tmp_path, trials, measure, sections):
    study = make_study(tmp_path, max_trials=max(1, trials))
    if trials:
        study = run_trials(study, **({"measure": measure} if measure else {}))
    assert page_of(study).sections == sections


@pytest.mark.parametrize("mode", ["min", "max"])
def test_any_number_can_be_drawn(tmp_path, mode):
    numbers = [1e308, -1e308, 0.0, 5e-324, None, 1e-9, -3.5, 1e6, 1e299, 12.0]
    goal = {"metric": NASTY[:-1].replace("$", ""), "mode": mode}
    study = run_trials(
        make_study(tmp_path, max_trials=20, goal=goal), lambda point, share, noise: noise.choice(numbers), evaluations=3
    )
    assert page_of(study).sections == SECTIONS


def test_a_killed_driver_leaves_trials_that_wait(tmp_path):
    found = page_of(run_trials(make_study(tmp_path), most=6))
    assert "stopped" in found.texts
    waiting = [row for row in found.trials if row["state"] == "waiting"]
    assert waiting and all(row["why it ended"] == "its driver died" for row in waiting)
    assert not any(row["state"] == "running" for row in found.trials)


def test_all_trials_failed(tmp_path):
    study = run_trials(make_study(tmp_path), fails=lambda number: True)
    found = page_of(study)
    assert {row["state"] for row in found.trials} == {"failed"} and "failed" in found.texts
    assert any("ResourceExhaustedError" in text for text in found.texts)


def test_text_of_others_is_text(tmp_path):
    name, words = NASTY[:-1], [NASTY[:-1], "</svg><b>", "$\\frac", "a" * 500]
    space = {**SPACE, "params.note": {"choice": words}, "params.one": {"choice": [[words]]}}
    study = run_trials(make_study(tmp_path, space=space, max_trials=12))
    study.state.trials[0].why = NASTY
    text = study_page(study, name, NOW)
    assert "<script" not in text and "</svg><b>" not in text and "<b>x" not in text
    assert page_of(study).sections == SECTIONS


def test_a_thousand_trials_and_many_keys_have_bounds(tmp_path):
    more = {
        f"params.{'x' * 20}{k}": {"uniform": [0, 1]} if k % 2 else {"choice": ["é" * 60 + str(n) for n in range(9)]}
        for k in range(30)
    }
    study = make_study(tmp_path, space={**SPACE, **more}, max_trials=1000)
    for number in range(1000):
        point = study.job.tune.points.drawn(0, number)
        at = BEGAN + number
        study.state.hear(Suggested(time=at, trial=number, driver="0" * 16, point=point, source="random"))
        job_dir = study.folder.job_dir(study.state.trials[number]).path
        job_dir.mkdir()
        lines = [
            json.dumps({"kind": "eval", "step": step, "time": at + step, "accuracy": 1 - 1 / (step + number)})
            for step in range(10, 100, 10 if number % 100 else 1)
        ]
        (job_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        study.state.hear(
            Left(time=at + 100, trial=number, driver="0" * 16, state="completed", step=90, value=0.5, why="")
        )
    found = page_of(study)
    text = " ".join(found.texts)
    assert "Drawn are 300 of 1,000 trials" in text and "11 more keys are in the table of trials alone" in text
    assert 200 < len(found.trials) < 1000 and f"The first {len(found.trials)} of 1,000 trials" in text


def test_the_command_writes_the_page(tmp_path):
    study = run_trials(make_study(tmp_path, max_trials=2))
    done = CliRunner().invoke(app, ["tune", "report", str(study.folder.path)])
    assert done.exit_code == 0, done.output
    path = study.folder.path / "report.html"
    assert done.output.strip().endswith("report.html") and path.read_text().startswith("<!doctype html>")
    assert write_study_report(*_opened(study)) == path
    refused = CliRunner().invoke(app, ["tune", "report", str(tmp_path)])
    assert refused.exit_code != 0 and "is no study" in refused.output


def _opened(study):
    found, settings = open_study(study.folder)
    return found, settings.name


def test_names_of_trials_lead_to_their_pages_or_job_dirs(tmp_path):
    study = run_trials(make_study(tmp_path, max_trials=3))
    (study.folder.trials / "0001/report.html").write_text("")
    (study.folder.trials / "0002/metrics.jsonl").unlink()
    (study.folder.trials / "0002").rmdir()
    page = study_page(study, "digits", NOW)
    assert re.findall(
        '<th scope="row" class="name"><a href="([^"]*)">(....)</a>', page.partition('id="trials"')[2]
    ) in (
        [("trials/0000/", "0000"), ("trials/0001/report.html", "0001")],
        [("trials/0001/report.html", "0001"), ("trials/0000/", "0000")],
    )
    assert '<th scope="row" class="name">0002</th>' in page
    assert len(re.findall("<dd><a href=", page)) == 1, "the best one's job-dir"

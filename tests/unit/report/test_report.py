import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpc_train.cli.report import report
from hpc_train.jobdir.history import History, with_runs
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.records import records_of
from hpc_train.report.charts import charts_of
from hpc_train.report.compare import as_markdown
from hpc_train.report.drawing import thin
from hpc_train.report.numbers import SUMMED_UP, best_of, by_rank, global_batch, mode_of
from hpc_train.report.page import report_page, write_report
from hpc_train.report.tables import (
    MOST_STARTS,
    Table,
    changes,
    export_paths,
    key_numbers,
    memory,
    shares_by_rank,
    starts,
)
from tests.job_dirs import a_job, record, write_job
from tests.support import examples

VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}

app = typer.Typer()
app.command()(report)


class Page(HTMLParser):
    """What a page holds: its elements, and its text by element."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text, self.badly_nested = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self):
        return "".join(self.text)


@pytest.fixture(scope="module")
def job_dir(tmp_path_factory):
    return a_job(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def page(job_dir):
    return write_report(job_dir).read_text()


def test_the_page_needs_nothing_else(page):
    parsed = Page(page)
    for tag, attributes in parsed.elements:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
                assert value.startswith(("#", "data:")), (tag, name, value)
    assert not parsed.all("script")
    assert "http" not in page.replace("http-equiv", "") and "@import" not in page
    assert page.isascii() and len(page) < 1_000_000
    assert re.search("Content-Security-Policy.*default-src 'none'", page)


def test_every_chart_says_what_it_shows(page):
    parsed = Page(page)
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    charts = [svg for svg in parsed.all("svg") if svg.get("aria-hidden") != "true"]
    assert len(charts) > 10
    for svg in charts:
        assert svg["role"] == "img" and set(svg["aria-labelledby"].split()) <= set(ids)
    for reference in re.findall(r'(?:url\(#|href="#)([^)"]+)', page):
        assert reference in ids
    assert "train: 5 points, first 0.3, lowest 0.05 at 60, highest 0.3 at 10, last 0.05. eval: 6 points" in page
    for axis in ("step", "loss", "learning rate", "examples/s a rank", "minutes since", "updates"):
        assert re.search(rf"<text[^>]*>[^<]*{axis}", page), axis


def test_what_the_user_wrote_is_text(page):
    parsed = Page(page)
    assert "<script" not in page
    assert parsed.words.count("<script>alert('x')</script> $x_1$ &amp;") >= 8  # as text, in charts too
    assert re.search(r"<text[^>]*>&lt;script&gt;", page)


def test_all_that_is_known_is_in_the_page(page):
    parsed = Page(page)
    sections = {section["id"] for section in parsed.all("section") if "id" in section}
    assert sections == {
        "metrics", "speed", "staleness", "timeline", "evaluations", "exports", "warm-start", "job"
    }  # fmt: skip
    for words in (
        "60 of 60 steps", "with 1 restart", "Error of rank 1", "Stopped early at step 60", "/runs/x/export/best/1570",
        "1 export failed", "1.2.3", "3.15.1", "batch_size: 16", "a/kernel", "best 0.9167 at step 60", "2 steps",
    ):  # fmt: skip
        assert words in parsed.words, words


def test_a_gap_is_a_gap_and_what_was_superseded_is_not_drawn(page):
    wide = re.search(r'<svg class="wide".*?</svg>', page, re.DOTALL)[0]
    assert "highest 9" not in wide  # the loss at step 40 that the restart took back
    line = next(d for d in re.findall(r'<path d="([^"]*)"', wide) if d.count("L") == 3)
    assert line.count("M") == 2


def test_a_report_of_every_stage_of_a_job(tmp_path):
    start = record("start", 0, 1000.0, ranks=1)
    once = record("train", 10, 1010.0, loss=0.5, examples_per_sec=10.0, learning_rate=0.1)
    odd = record("train", 20, 1020.0, loss=1e308, examples_per_sec="x", by_rank={"input": [None, 0.5], "compute": 3})
    best = record("eval", 20, 1021.0, loss=0.4, accuracy=1e308)
    for number, records in enumerate(([], [start], [start, once], [once], [start, once, odd], [start, once, best])):
        job_dir = write_job(tmp_path / str(number), records, {"state": "running"})
        assert write_report(job_dir) == job_dir / "report.html"
        assert "running" in Page((job_dir / "report.html").read_text()).words
        assert list(job_dir.glob(".*")) == []
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "job.yaml").write_text("name: x")
    assert "No status" in Page(write_report(empty, tmp_path / "out.html").read_text()).words


def test_a_job_of_an_older_version(tmp_path):
    old = [record("start", 0, 5.0, ranks=2), record("train", 100, 9.0, loss=0.5, examples_per_sec=9.0, input_wait=0.1)]
    status = {"state": "succeeded", "step": 100, "max_steps": 100, "exports": ["/runs/x/export/final/1"]}
    words = Page(write_report(write_job(tmp_path / "old", old, status)).read_text()).words
    assert "/runs/x/export/final/1" in words and "Waiting for input" in words


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def keyed(*names):
    return st.dictionaries(st.sampled_from(names), json_values)


@settings(max_examples=examples(40))
@given(
    keyed("state", "step", "max_steps", "ranks", "error", "exports", "stopped_early", "export_errors", "updated"),
    keyed("name", "run", "data", "eval", "train"),
    keyed("ranks", "packages", "environment", "mpi"),
    st.lists(keyed("loss", "by_rank", "staleness", "secs", "exporter", "ranks", "state"), max_size=2),
)
def test_nothing_in_a_job_dir_is_too_broken(tmp_path_factory, status, job, environment, values):
    kinds = ("start", "train", "eval", "export", "end")
    lines = [json.dumps({**v, "kind": kinds[i % 5], "step": i, "time": 9.0 + i}) for i, v in enumerate(values * 3)]
    records, restarts = with_runs(records_of(lines))
    history = History(tmp_path_factory.getbasetemp(), records, restarts, status, job, "", environment)
    Page(report_page(history))


points = st.lists(st.none() | st.floats(-10, 10), max_size=300).map(
    lambda ys: [(float(x), y) for x, y in enumerate(ys)]
)


@given(points, st.integers(6, 50))
def test_fewer_points_look_the_same(curve, limit):
    thinned = thin(curve, limit)
    assert len(thinned) <= limit and set(thinned) <= set(curve) and thinned == sorted(thinned, key=lambda p: p[0])
    for pick in (min, max):
        known = [[y for _, y in each if y is not None] for each in (curve, thinned)]
        assert pick(known[0], default=None) == pick(known[1], default=None)
    assert any(y is None for _, y in curve) == any(y is None for _, y in thinned)


def history_of(tmp_path, job, *records):
    lines = [json.dumps(each) for each in records]
    return History(tmp_path, *with_runs(records_of(lines)), job=job)


def test_what_is_best_is_told_by_the_job_or_by_the_name(tmp_path):
    records = [record("eval", step, step, accuracy=1.0 / step, loss=float(step), novelty=1.0) for step in (1, 2)]
    history = history_of(tmp_path, {}, *records)
    assert best_of(history, "eval", "accuracy").step == 1 and best_of(history, "eval", "loss").step == 1
    assert best_of(history, "eval", "novelty") is None
    names = {"val_mae": "min", "top_k_categorical_accuracy": "max", "AUC": "max", "mean_squared_error": "min"}
    assert {name: mode_of(history, name) for name in names} == names
    by_exporter = {"evals": {"far": {"exporters": {"mine": {"type": "best", "metric": "novelty", "mode": "max"}}}}}
    assert mode_of(history_of(tmp_path, by_exporter), "novelty") == "max"
    by_run = {"run": {"best_metric": "accuracy", "best_mode": "min"}}
    assert mode_of(history_of(tmp_path, by_run), "accuracy") == "min"


def test_ranks_that_do_not_train_have_no_curve(tmp_path):
    rates = [None, 5.0, 7.0]
    history = history_of(
        tmp_path, {}, record("start", 0, 0), record("train", 1, 1, by_rank={"examples_per_sec": rates})
    )
    told = by_rank(history, "examples_per_sec")
    assert told.ranks == (1, 2) and told.values.tolist() == [[5.0, 7.0]]


def test_many_ranks_are_shown_together_and_with_those_that_were_recorded_one_by_one(tmp_path):
    """As in a job that went on with more ranks than are recorded one by one."""
    few = {"examples_per_sec": [1.0, 2.0, 6.0], "input": [0.0, 0.1, 0.2], "compute": [0.5, 0.5, None]}
    few["gap"] = [0.05, 0.06, None]
    many = {
        name: {"ranks": 100, "lowest": low, "median": 0.25, "mean": 0.5, "highest": 1.0, "highest_rank": 3}
        for name, low in (("examples_per_sec", 0.125), ("input", 0.0), ("compute", 0.25), ("gap", 0.0))
    }
    odd = {"examples_per_sec": {"ranks": "x", "lowest": [], "median": None}, "input": 3, "compute": {}}
    records = [record("train", 1, 1, by_rank=few), record("train", 2, 2, over_ranks=many)]
    history = history_of(tmp_path, {}, record("start", 0, 0), *records, record("train", 3, 3, over_ranks=odd))
    speed, shares, *_ = charts_of(history).speed
    (curve,) = speed.curves
    assert (curve.label, curve.points[:2]) == ("median of 100 ranks", [(1.0, 2.0), (2.0, 0.25)])
    assert curve.band[:2] == [(1.0, 1.0, 6.0), (2.0, 0.125, 1.0)]
    assert [(one.label, one.points[1][1]) for one in shares.curves][:2] == [("compute", 0.5), ("input", 0.5)]
    table = shares_by_rank(history)
    assert [row[0] for row in table.rows] == [f"{name} of the ranks" for name in SUMMED_UP]
    assert table.header == ("", "compute", "input", "device waits for host")
    alone = shares_by_rank(history_of(tmp_path, {}, record("start", 0, 0), records[0]))
    assert alone.header == table.header
    assert [row[-1] for row in alone.rows] == ["5.0%", "6.0%", "–"]
    assert report_page(history)


def test_memory_of_each_rank_is_shown_as_computed_and_as_measured(tmp_path):
    held = {"parameters": 4_000_000, "gradients": 4_000_000, "optimizer": 1_000_000}
    ranks = [{"rank": 0, "role": "chief"}, {"rank": 1, "role": "worker", "memory": held}, {"rank": 2, "memory": "x"}]
    few = [record("train", step, step, by_rank={"memory": [None, 1e9 * step, None]}) for step in (1, 2)]
    history = history_of(tmp_path, {}, record("start", 0, 0), *few)
    history = replace(history, environment={"ranks": ranks})
    table = memory(history)
    assert table.header == ("", "parameters", "gradients", "optimizer", "resident at most")
    assert list(table.rows) == [("rank 1", "4.0 MB", "4.0 MB", "1.0 MB", "2.0 GB")]
    assert "Memory by rank" in report_page(history)
    many = {"memory": {"ranks": 100, "lowest": 1e9, "median": 2e9, "mean": 2.5e9, "highest": 4e9}}
    together = memory(history_of(tmp_path, {}, record("start", 0, 0), record("train", 1, 1, over_ranks=many)))
    assert [row[1] for row in together.rows] == ["1.0 GB", "2.0 GB", "4.0 GB", "2.5 GB"]
    assert memory(history_of(tmp_path, {})) is None


def test_where_only_the_wait_for_input_is_known_it_has_a_chart_of_its_own(tmp_path):
    """As in an asynchronous job, whose rank 0 takes no steps."""
    told = {"examples_per_sec": [None, 20.0, 30.0], "input": [None, 0.1, 0.2]}
    records = [record("start", 0, 0), *(record("train", step, step, by_rank=told) for step in (1, 2))]
    speed = charts_of(history_of(tmp_path, {}, *records)).speed
    curves = {chart.title: [(curve.label, curve.points[0][1]) for curve in chart.curves] for chart in speed}
    assert curves == {
        "Speed of each rank": [("rank 1", 20.0), ("rank 2", 30.0)],
        "Waiting for input": [("rank 1", 0.1), ("rank 2", 0.2)],
    }


def test_each_run_has_the_phases_of_its_start(tmp_path):
    told = [{"TensorFlow": 2.5, "MPI": 0.25, "another": 9.0}, {"launch": 1.0, "MPI": "x"}, "not by phase"]
    records = [record("first_step", step, 1000.0 + step, secs=3.0, phases=one) for step, one in enumerate(told)]
    history = history_of(tmp_path, {}, record("start", 0, 1000.0), *records)
    table = starts(history)
    assert table.header == ("when", "step", "in all", "launch", "MPI", "TensorFlow")
    assert [row[1:] for row in table.rows] == [("0", "3", "–", "0.25", "2.5"), ("1", "3", "1", "–", "–")]
    assert "From the start to the first step" in report_page(history)
    many = [record("first_step", step, 1000.0, secs=1.0, phases={"MPI": 1.0}) for step in range(MOST_STARTS + 5)]
    assert len(starts(history_of(tmp_path, {}, *many)).rows) == MOST_STARTS
    assert not starts(history_of(tmp_path, {}, record("start", 0, 1000.0))).rows


def test_a_checkpoint_is_marked_where_it_was_committed(tmp_path):
    """It is told of after the evaluation that follows it."""
    saved = record("checkpoint", 5, 1100.0, secs=2.0, committed=1040.0)
    lanes = dict(charts_of(history_of(tmp_path, {}, record("start", 0, 1000.0), saved)).time_line.lanes)
    assert [(mark.start, mark.end) for mark in lanes["checkpoints"]] == [(38.0, 40.0)]


def test_exports_that_were_removed_are_told(tmp_path):
    exports = [record("export", step, step, exporter="best", path=f"/elsewhere/best/{step}") for step in (1, 2)]
    job_dir = write_job(tmp_path, [record("start", 0, 0), *exports])
    (job_dir / "export/best/2").mkdir(parents=True)
    history = JobDir(job_dir).history()
    assert export_paths(history) == [
        ("best", "1", "/elsewhere/best/1 (removed since)"),
        ("best", "2", "/elsewhere/best/2"),
    ]
    assert ("exports", "2", "1 removed since") in [(f.name, f.value, f.more) for f in key_numbers(history)]


def test_examples_a_step(tmp_path):
    for run, batch in (
        ({"strategy": "sync"}, 32), ({"strategy": "sync", "chief": "dedicated"}, 24), ({"strategy": "async"}, 8),
        ({"strategy": "sync", "accumulate_steps": 2}, 32),
    ):  # fmt: skip
        job = {"data": {"train": {"batch_size": 8}}, "run": run}
        assert global_batch(history_of(tmp_path, job, record("start", 0, 0, ranks=4))) == batch


def run_report(*arguments, cwd):
    previous = Path.cwd()
    os.chdir(cwd)
    try:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        os.chdir(previous)


def test_the_command_for_one_job(job_dir, tmp_path):
    (job_dir / "report.html").unlink(missing_ok=True)
    done = run_report(job_dir, cwd=tmp_path)
    assert (done.exit_code, done.output.strip()) == (0, str(job_dir / "report.html"))
    assert Page((job_dir / "report.html").read_text())
    done = run_report(job_dir, "--out", "here.html", cwd=tmp_path)
    assert (done.exit_code, (tmp_path / "here.html").is_file()) == (0, True)


def test_the_command_for_several_jobs(job_dir, tmp_path):
    other = a_job(tmp_path / "other", ranks=3, learning_rate=0.2, name="other")
    bare = write_job(tmp_path / "bare", [])
    done = run_report(job_dir, other, bare, cwd=tmp_path)
    assert (done.exit_code, done.output.strip()) == (0, "compare.html")
    text = (tmp_path / "compare.html").read_text()
    parsed = Page(text)
    assert "<script" not in text and not re.search("https?:", text)
    assert {"jobs", "differences", "by-step", "by-time"} <= {section.get("id") for section in parsed.all("section")}
    assert "params.learning_rate" in parsed.words
    assert "train.max_steps" not in parsed.words and "params.note" not in parsed.words
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_markdown(job_dir, tmp_path):
    other = a_job(tmp_path / "a|b", ranks=3, learning_rate=0.2)
    done = run_report(job_dir, other, "--markdown", cwd=tmp_path)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].startswith("|  | job | best accuracy | at step |") and lines[2].startswith(
        "| 1 | run | 0.9167 | 60 |"
    )
    at = lines.index("|  | run | a\\|b |")
    assert lines[at + 1] == "| :-- | --: | --: |"
    assert "| ranks | 2 | 3 |" in lines and "| params.learning\\_rate | 0.1 | 0.2 |" in lines
    assert run_report(job_dir, "--markdown", "--out", "t.md", cwd=tmp_path).exit_code == 0
    assert "| steps | 60 of 60 |" in (tmp_path / "t.md").read_text()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A folder of many jobs, of which job i reaches an accuracy of 0.5 + i / 100, but the last one none."""
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    for i in range(40):
        accuracies = {10: 0.5 + i / 100, 20: 0.4} if i < 39 else {}
        records = [record("start", 0, 0.0, ranks=1), record("train", 10, 10.0, loss=1.0 / (i + 1))]
        records += [
            record("eval", step, 20.0 + step, accuracy=value, loss=1 - value) for step, value in accuracies.items()
        ]
        params = {"learning_rate": 0.1 / (i + 1), "same": 1, **{f"setting_{k}": f"value {i} of {k}" for k in range(20)}}
        job = {"name": "same", "params": params, "run": {"strategy": "sync"}}
        write_job(folder / f"fashion_mnist_20261123_0815{i:02}", records, {"state": "succeeded", "step": 20}, job)
    (folder / "notes").mkdir()
    write_job(folder / "evaluated", []).joinpath("status.json").unlink()  # as `hpc-train evaluate` leaves one
    return folder


def rows_of(text, section):
    """The cells of a section's tables, a row each."""
    part = re.search(f'<section id="{section}">.*?</section>', text, re.DOTALL)[0]
    rows = re.findall("<tr>(.*?)</tr>", part, re.DOTALL)
    return [[re.sub("<.*?>", "", cell) for cell in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows]


def test_a_folder_of_jobs_is_ranked(sweep, tmp_path):
    done = run_report(sweep, "--out", "sweep.html", cwd=tmp_path)
    assert (done.exit_code, done.output.strip()) == (0, "sweep.html")
    text = (tmp_path / "sweep.html").read_text()
    assert Page(text) and "40 jobs side by side" in text and "By the highest accuracy." in text
    head, *rows = rows_of(text, "ranking")
    assert head == ["", "job", "best accuracy", "at step", "last", "steps", "running time", "state"]
    assert rows[0][:5] == ["1", "fashion_mnist_20261123_081538", "0.88", "10", "0.4"]
    assert rows[-1][:3] == ["&#8211;", "fashion_mnist_20261123_081539", "&#8211;"] and len(rows) == 40
    differing = rows_of(text, "differences")
    heads = [row for row in differing if row[0] == "job"]
    assert sum(len(row) - 1 for row in heads) == 21 + 1 and len(heads) > 2 and "params.same" not in text
    assert differing[1][0] == "fashion_mnist_20261123_081538", "by rank"
    assert "The first 36 of 40 jobs, by rank." in text
    legend = re.search('<p class="legend">(.*?)</p>', text, re.DOTALL)[1]
    names = re.findall(r"fashion_mnist_\d+_\d+", legend)
    assert names == [f"fashion_mnist_20261123_0815{i:02}" for i in range(38, 2, -1)]


def test_jobs_are_ranked_by_what_is_asked_for_or_what_they_keep_the_best_of(sweep, tmp_path):
    def first(*arguments):
        lines = run_report(sweep, "--markdown", *arguments, cwd=tmp_path).output.splitlines()
        return lines[0].split(" | ")[2], lines[2].split(" | ")[1].replace("\\", "")[-2:]

    assert first() == ("best accuracy", "38") and first("--metric", "accuracy:min") == ("best accuracy", "00")
    assert first("--metric", "eval.loss") == ("best loss", "38")
    assert first("--metric", "train.loss") == ("best loss in training", "39")
    for path in sweep.glob("*/job.yaml"):
        path.write_text(path.read_text().replace("strategy: sync", "best_metric: loss"))
    assert first() == ("best loss", "38")


def test_a_folder_with_one_job_and_jobs_by_name(job_dir, tmp_path):
    a_job(tmp_path / "runs" / "one")
    assert run_report("runs", cwd=tmp_path).output.strip() == "compare.html"
    assert run_report("one", cwd=tmp_path).output.strip() == str(tmp_path / "runs/one/report.html")
    (tmp_path / "runs" / "one").rename(tmp_path / "runs" / "renamed")
    done = run_report("renamed", job_dir, "--markdown", cwd=tmp_path)
    assert "| 1 | renamed |" in done.output


@given(st.lists(st.lists(st.text(max_size=8), min_size=2, max_size=2), min_size=1, max_size=3))
def test_a_table_in_markdown_has_its_cells_whatever_they_hold(cells):
    text = as_markdown(Table(("a", "b"), [tuple(row) for row in cells]))
    lines = text.split("\n")
    assert len(lines) == len(cells) + 2
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3 for line in lines)


def test_bad_input_is_told(job_dir, tmp_path):
    (tmp_path / "nothing").mkdir()
    a_job(job_dir.parent / "run2")
    for arguments, said in (
        ([tmp_path / "missing"], "no such job"),
        ([tmp_path / "missing", tmp_path / "nothing"], "holds none"),
        ([job_dir, "--metric", "accuracy"], "--metric is for several jobs"),
        ([job_dir, job_dir.parent / "run2", "--metric", "acuracy"], "did you mean `accuracy`?"),
        ([job_dir, job_dir.parent / "run2", "--metric", "accuracy:up"], "allowed: accuracy, accuracy:min"),
        ([job_dir, job_dir.parent / "run2", "--metric", "novelty"], "whether more of novelty is better"),
        ([tmp_path / "nothing"], "is no job-dir"),
        ([job_dir, "--out", tmp_path], "is a folder"),
        ([job_dir, "--out", tmp_path / "missing" / "x.html"], "no such folder"),
        ([job_dir, "--out", "/proc/x.html"], "cannot be written"),
    ):
        done = run_report(*arguments, cwd=tmp_path)
        assert done.exit_code == 2 and said in done.output and "error:" in done.output, arguments


def test_a_users_settings_of_matplotlib_change_nothing(job_dir, tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 40\nsvg.fonttype: path\nbackend: TkAgg\n")
    code = "import sys; from hpc_train.report.page import write_report; from pathlib import Path\n"
    code += "write_report(Path(sys.argv[1]), Path(sys.argv[2])); assert 'matplotlib.pyplot' not in sys.modules\n"
    code += "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    out = tmp_path / "x.html"
    done = subprocess.run(
        [sys.executable, "-c", code, job_dir, out], env={**os.environ, "MATPLOTLIBRC": str(tmp_path)}, timeout=600
    )
    written = re.compile("Written .*")
    assert done.returncode == 0
    assert written.sub("", out.read_text()) == written.sub("", write_report(job_dir).read_text())


def test_settings_changed_between_runs_hold_until_a_run_goes_back_before_them(tmp_path):
    def change(step, key, now, ignored=""):
        return record("change", step, 1.0, key=key, before="1", now=now, ignored=ignored)

    start = [record("start", step, 1.0) for step in (0, 10, 20, 10, 10)]
    records = [start[0], start[1], change(10, "a", "2"), start[2], change(20, "b", "2"), change(20, "c", None, "why")]
    history = JobDir(write_job(tmp_path / "a", records)).history()
    assert changes(history).rows == [
        ("10", "a", "1", "2", "–"),
        ("20", "b", "1", "2", "–"),
        ("20", "c", "1", "–", "why"),
    ]
    assert "Settings changed on the way" in report_page(history)
    again = [*records, start[3], change(10, "b", "2")]
    assert changes(JobDir(write_job(tmp_path / "b", again)).history()).rows == [("10", "b", "1", "2", "–")]
    undone = JobDir(write_job(tmp_path / "c", [*again, start[4]])).history()
    assert changes(undone).rows == [] and "Settings changed" not in report_page(undone)

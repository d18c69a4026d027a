"""Jobs as people read them."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from hpc_train.cli.terminal import console, show
from hpc_train.jobs.layout import asked_column, asked_table, duration, in_short, moment, number
from hpc_train.jobs.record.status import STATES, JobStatus
from hpc_train.jobs.site.tiers import TierRow
from hpc_train.jobs.tables import COLOURS, description, evaluation_of, job_table, progress_of, tier_table
from tests.support import examples

HOSTILE = ["[red]x", "a[/b]c", "[/]", "[link=http://x]y", "\\[x]", ":smile:", "[[x]]", "[@click=f]"]
"""What rich would take for markup."""


def a_job(**changes: Any) -> JobStatus:
    first = JobStatus(
        name="fashion_mnist_20261120_081500",
        job_dir="/runs/fashion_mnist_20261120_081500",
        job_id="4711",
        backend="slurm",
        kind="model",
        state="RUNNING",
        reason=None,
        step=1200,
        max_steps=20000,
        examples_per_sec=41234.5,
        loss=0.123456,
        evaluation={"step": 1000, "loss": 0.2, "accuracy": 0.91234},
        secs_left=3723.4,
        limit_secs_left=90061.0,
        ranks=4,
        where="n[1-2]",
        tier="STANDARD_1",
        requeues=0,
        restarts=0,
        submitted=1e9,
        started=1e9 + 60,
        updated=1e9 + 120,
        error=None,
        exports=[],
        exit_code=None,
        note=None,
    )
    return replace(first, **changes)


def shown(what: RenderableType, width: int = 200, colours: bool = False) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, highlight=False, force_terminal=colours, color_system="truecolor" if colours else None
    )
    console.print(what)
    return file.getvalue()


def table(*jobs: JobStatus, width: int = 200) -> list[str]:
    """The lines of a table, without blanks at their ends."""
    return [line.rstrip() for line in shown(job_table(jobs, width), width).splitlines()]


def rows(*jobs: JobStatus) -> list[list[str]]:
    """The words of a table's rows, without its head."""
    return [line.split() for line in table(*jobs)[1:]]


def facts(job: JobStatus) -> dict[str, str]:
    """The table of a description."""
    lines = shown(description(job)).partition("last lines:")[0].splitlines()
    column = lines[0].index(job.name)
    return {line[:column].strip(): line[column:].strip() for line in lines}


def test_the_table_of_a_running_job() -> None:
    head, row = (line.split() for line in table(a_job()))
    assert head == ["name", "number", "state", "step", "examples/s", "loss", "evaluation", "left", "limit", "in"]
    assert row == [
        *("fashion_mnist_20261120_081500", "4711", "RUNNING", "1,200/20,000", "41,234", "0.1235"),
        *("accuracy", "0.9123", "1:02:03", "1d", "01h"),
    ]


NOTHING: dict[str, Any] = dict.fromkeys(
    ("job_id", "step", "max_steps", "examples_per_sec", "loss", "evaluation", "secs_left", "limit_secs_left")
)


def test_what_is_unknown_is_a_dash_or_no_column() -> None:
    waits = a_job(state="QUEUED", reason="Resources", **NOTHING)
    assert table(waits) == [
        "name                           state",
        "fashion_mnist_20261120_081500  QUEUED  Resources",
    ]
    assert rows(waits, a_job())[0] == [waits.name, "–", "QUEUED", *["–"] * 6, "Resources"]


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.builds(
            a_job,
            name=st.text("ab", min_size=1, max_size=40),
            state=st.sampled_from(STATES),
            reason=st.none() | st.text("xy \n", max_size=300),
            error=st.none() | st.fixed_dictionaries({"rank": st.integers(0, 99), "message": st.text("xy \n")}),
            loss=st.none() | st.floats(0, 1e9),
            secs_left=st.none() | st.floats(0, 1e7),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(70, 200),
)
def test_a_table_keeps_to_its_width_and_to_a_line_a_job(jobs: list[JobStatus], width: int) -> None:
    lines = table(*jobs, width=width)
    assert len(lines) == 1 + len(jobs)
    assert max(map(len, lines)) <= width
    for line, job in zip(lines[1:], jobs, strict=True):
        assert line.split()[0] == job.name
        assert job.state in line


def test_where_there_is_no_room_columns_are_left_out() -> None:
    job = a_job(state="FAILED", error={"rank": 1, "message": "x" * 100})
    assert "1,200/20,000" in table(job, width=80)[1]
    assert "accuracy" not in table(job, width=80)[1]
    assert " FAILED " in table(job, width=80)[1]
    assert "  rank 1: x" in table(job, width=80)[1]
    assert table(job, width=80)[1].endswith("…")
    assert "accuracy" in table(job, width=200)[1]


def test_a_rate_is_that_of_a_job_that_runs() -> None:
    assert "41,234" not in rows(a_job(state="SUCCEEDED"))[0]


def test_why_a_job_failed_is_one_line() -> None:
    error = {"rank": 3, "message": "ValueError: bad\nmore of it"}
    assert rows(a_job(state="FAILED", reason="Slurm: FAILED", error=error))[0][-4:] == [
        "rank",
        "3:",
        "ValueError:",
        "bad",
    ]
    error = {"rank": None, "message": "Slurm: NODE_FAIL"}
    assert rows(a_job(state="FAILED", error=error))[0][-2:] == ["Slurm:", "NODE_FAIL"]
    assert rows(a_job(state="FAILED", error={}, reason="why"))[0][-1] == "why"
    assert rows(a_job(state="LOST", error=error, reason="why"))[0][-1] == "why"


@pytest.mark.parametrize(
    ("secs", "text"), [(None, ""), (86399, "23:59:59"), (86400, "1d 00h"), (999 * 86400.0, "999d 00h"), (1e8, "1,157d")]
)
def test_a_duration_takes_eight_characters_whatever_it_is(secs: float | None, text: str) -> None:
    assert in_short(secs) == text


def test_days_push_no_column_out() -> None:
    short, days = a_job(limit_secs_left=3600.0), a_job(secs_left=9e5, limit_secs_left=9e6)
    assert [len(table(short, days, width=width)[0].split()) for width in (80, 100, 120)] == [
        len(table(short, width=width)[0].split()) for width in (80, 100, 120)
    ]
    assert "accuracy" in table(days, width=80)[1] and "10d 10h" in table(days, width=80)[1]


def asked(width: int, **columns: list[Any]) -> tuple[list[str], list[str]]:
    found, left_out = asked_table([asked_column(title, values) for title, values in columns.items()], width)
    return [line.rstrip() for line in shown(found, width).splitlines()], left_out


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.text("abc", min_size=1, max_size=60),
            st.none() | st.floats(-1e9, 1e9),
            st.text("xyz ", max_size=80),
            st.none() | st.integers(0, 10**12),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(20, 200),
)
def test_columns_that_were_asked_for_keep_to_the_width_and_numbers_are_whole(rows: Any, width: int) -> None:
    names, floats, texts, whole = map(list, zip(*rows, strict=True))
    columns = {"name": names, "params.learning_rate": floats, "params.note": texts, "x" * 40: whole}
    lines, left_out = asked(width, **columns)
    assert len(lines) == 1 + len(names) and max(map(len, lines)) <= width
    given_titles = list(columns)
    shown_titles = given_titles[: len(given_titles) - len(left_out)]
    assert left_out == given_titles[len(shown_titles) :] and len(shown_titles) > 1
    if len(shown_titles) == 4:
        assert [line.split()[-1] for line in lines[1:]] == ["–" if n is None else str(n) for n in whole]


def test_columns_that_were_asked_for_are_shortened_by_importance() -> None:
    name, rates = "fashion_mnist_20261120_081500", ["0.1", "0.001"]
    columns: dict[str, list[Any]] = {"name": [name, name], "params.learning_rate": rates, "accuracy": [0.5, None]}
    (head, first, second), left_out = asked(80, **columns)
    assert head.split() == ["name", "learning_rate", "accuracy"] and not left_out
    assert (first.split(), second.split()) == ([name, "0.1", "0.5"], [name, "0.001", "–"])
    assert asked(10**5, **columns)[0][0].split()[1] == "params.learning_rate", "whole in a pipe"
    (head, first, _), left_out = asked(36, **columns)
    assert head.split()[1:] == ["learnin…", "accuracy"] and first.split() == ["fashion_…_081500", "0.1", "0.5"]
    (head, _, _), left_out = asked(26, **columns)
    assert head.split() == ["name", "learnin…"] and left_out == ["accuracy"]


def test_names_are_whole() -> None:
    names = ["a" * 128, "b"]
    long = a_job(name=names[0], state="FAILED", reason="x " * 200)
    assert all(state in " ".join(table(long, width=60)) for state in ("FAILED", "a…")), "as far as there is room"
    for width in (160, 400):
        assert [line.split()[0] for line in table(long, a_job(name=names[1]), width=width)[1:]] == names


@pytest.mark.parametrize("text", HOSTILE)
def test_the_table_shows_brackets_as_they_are(text: str) -> None:
    job = a_job(name=text, job_id=text, state="FAILED", evaluation={"step": 1, text: 0.5})
    for changes in ({"error": {"rank": 1, "message": text}}, {"error": None, "reason": text}):
        assert table(replace(job, **changes))[1].count(text) == 4


@pytest.mark.parametrize("text", HOSTILE)
def test_a_description_shows_brackets_as_they_are(text: str) -> None:
    job = a_job(
        name=text,
        job_id=text,
        reason=text,
        note=text,
        where=text,
        tier=text,
        job_dir=text,
        exports=[text],
        evaluation={"step": 1, text: 0.5},
        error={"rank": 1, "message": text, "lines": [text]},
    )
    assert shown(description(job)).count(text) == 11


@pytest.mark.parametrize("state", STATES)
def test_states_have_colours_on_a_terminal_alone(state: Any) -> None:
    job = a_job(state=state)
    for what in (job_table([job], 200), description(job)):
        assert "\x1b[" in shown(what, colours=True)
        assert "\x1b[" not in shown(what)
        assert state in shown(what)
    assert set(COLOURS) == set(STATES)


def test_all_of_a_running_job() -> None:
    found = facts(a_job(exports=["/runs/a/export/1"], note="Slurm does not answer", requeues=1, restarts=2))
    assert found == {
        "name": "fashion_mnist_20261120_081500",
        "state": "RUNNING",
        "note": "Slurm does not answer",
        "step": "1,200/20,000, 41,234 examples/s, loss 0.1235",
        "evaluation": "loss 0.2000  accuracy 0.9123  (step 1,000)",
        "time left": "about 1:02:03",
        "time limit in": "1 day, 1:01:01",
        "export": "/runs/a/export/1",
        "runs": "a model on 4 ranks, tier STANDARD_1, n[1-2]",
        "started again": "2 times",
        "queue": "Slurm job 4711",
        "submitted": moment(1e9),
        "started": moment(1e9 + 60),
        "updated": moment(1e9 + 120),
        "job-dir": "/runs/fashion_mnist_20261120_081500",
    }


def test_all_of_a_job_that_failed() -> None:
    lines = ["Traceback", "  File x", "ValueError: [red]bad[/red]", "x" * 500]
    error = {"rank": 0, "message": "ValueError: bad", "signal": None, "lines": lines}
    job = a_job(state="FAILED", reason="Slurm: FAILED, exit code 1", error=error, exit_code=1)
    found = facts(job)
    assert (found["state"], found["error"], found["exit code"]) == (
        "FAILED (Slurm: FAILED, exit code 1)",
        "rank 0: ValueError: bad",
        "1",
    )
    text = shown(description(job))
    _, _, below = text.partition("last lines:\n")
    assert below.splitlines()[:3] == [f"  {line}" for line in lines[:3]]
    assert len(below.splitlines()) == 4, "a long line is cut"


def test_the_least_that_is_known() -> None:
    nothing = {**NOTHING, **dict.fromkeys(("ranks", "where", "tier", "submitted", "started", "updated"))}
    found = facts(a_job(backend="by hand", kind="program", state="LOST", exit_code=10, **nothing))
    assert found == {
        "name": "fashion_mnist_20261120_081500",
        "state": "LOST",
        "exit code": "10",
        "runs": "a program on ranks unknown",
        "queue": "none: started by hand",
        "job-dir": "/runs/fashion_mnist_20261120_081500",
    }
    assert facts(a_job(ranks=1))["runs"].startswith("a model on 1 rank,")
    assert facts(a_job(backend="local"))["queue"] == "local job 4711"


def test_how_often_a_job_was_started_again() -> None:
    assert "started again" not in facts(a_job())
    assert facts(a_job(requeues=1))["started again"] == "once"
    assert facts(a_job(restarts=2))["started again"] == "2 times"


@pytest.mark.parametrize("backend", ["slurm", "local"])
def test_a_submitted_job_without_a_number_was_not_started_by_hand(backend: str) -> None:
    assert facts(a_job(backend=backend, job_id=None, state="QUEUED"))["queue"] == "not in the queue yet"
    assert facts(a_job(backend=backend, job_id=None, state="LOST"))["queue"] == "its number is not known"


def test_a_job_that_was_cancelled_while_it_waited_was_not_started() -> None:
    waited = a_job(state="CANCELLED", started=1e9 + 300, updated=1e9 + 1)
    assert "started" not in facts(waited)
    assert "started" not in facts(replace(waited, updated=None))
    assert facts(replace(waited, updated=1e9 + 301))["started"] == moment(1e9 + 300)
    assert "started" in facts(replace(waited, state="PREPARING")), "which has not told anything yet"


def tier(**changes: Any) -> TierRow:
    first = TierRow(
        name="STANDARD_1",
        nodes=1,
        ranks=4,
        cores=8,
        memory="16G",
        gpus=None,
        time="1-00:00:00",
        partition="batch",
        about="Four ranks on one node, for models of a middle size",
        file="tiers.yaml",
        problems=(),
    )
    return replace(first, **changes)


def test_a_tier_says_what_it_is_for_where_there_is_room() -> None:
    lines = [line.rstrip() for line in shown(tier_table([tier()], 200)).splitlines()]
    assert lines[1].endswith("  Four ranks on one node, for models of a middle size")
    narrow = shown(tier_table([tier(memory=None)], 60), width=60).splitlines()
    assert len(narrow) == 2
    assert narrow[1].split() == ["STANDARD_1", "1", "4", "8", "1-00:00:00", "batch"]
    assert "Small" in shown(tier_table([tier(about="Small")], 70), width=70), "as little room as it takes"
    between = shown(tier_table([tier()], 90), width=90).splitlines()
    assert len(between) > 2
    assert max(map(len, between)) <= 90


def test_nothing_is_cut_in_a_pipe_nor_filled_up(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [a_job(state="FAILED", error={"rank": 1, "message": "x " * 400 + "end"}), a_job(job_dir="/d" * 300)]
    screen = console()
    show(screen, job_table(jobs, screen.width), description(jobs[1]), tier_table([tier(), tier(about="")], 10**5))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert lines[0].split() == [
        *("name", "number", "state", "step", "examples/s", "loss", "evaluation", "left", "limit", "in"),
    ]
    assert lines[1].endswith("x end")
    assert any(line.endswith("/d" * 300) for line in lines)


def test_a_long_job_dir_is_whole() -> None:
    job = a_job(job_dir="/scratch/" + "/".join(["folder"] * 40))
    text = shown(description(job), width=80)
    assert job.job_dir in "".join(line.strip() for line in text.splitlines())


def test_steps() -> None:
    assert progress_of(a_job()) == "1,200/20,000"
    assert progress_of(a_job(max_steps=None)) == "1,200"
    assert progress_of(a_job(step=0, max_steps=10)) == "0/10"
    assert progress_of(a_job(step=None)) == ""


def test_evaluations() -> None:
    job = a_job()
    assert evaluation_of(job, short=True) == "accuracy 0.9123"
    assert evaluation_of(replace(job, evaluation={"step": 1, "loss": 0.25}), short=True) == "loss 0.25"
    for nothing in (None, {}, {"step": 5}, {"step": 5, "accuracy": None}):
        assert evaluation_of(replace(job, evaluation=nothing), short=True) == ""
        assert evaluation_of(replace(job, evaluation=nothing), short=False) == ""
    assert evaluation_of(replace(job, evaluation={"loss": 0.25}), short=False) == "loss 0.2500"


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (None, ""),
        (0, "0:00:00"),
        (0.6, "0:00:01"),
        (59.4, "0:00:59"),
        (3723, "1:02:03"),
        (86400, "1 day, 0:00:00"),
        (200000, "2 days, 7:33:20"),
        (-3, "0:00:00"),
    ],
)
def test_durations(secs: float | None, text: str) -> None:
    assert duration(secs) == text


def test_numbers_and_moments() -> None:
    assert (number(None, ".4g"), number(0.0, ".4g"), number(1234.5, ",.0f")) == ("", "0", "1,234")
    assert datetime.fromisoformat(moment(1e9)).timestamp() == 1e9


texts = st.text(max_size=8)
reals = st.none() | st.floats(-1e12, 1e12)


@settings(max_examples=examples(40))
@given(
    st.builds(
        a_job,
        name=texts,
        state=st.sampled_from(STATES),
        reason=st.none() | texts,
        step=st.none() | st.integers(0),
        max_steps=st.none() | st.integers(0),
        loss=reals,
        examples_per_sec=reals,
        secs_left=reals,
        evaluation=st.none() | st.dictionaries(texts, reals, max_size=2),
        error=st.none()
        | st.fixed_dictionaries(
            {}, optional={"rank": st.none() | st.integers(), "message": st.none() | texts, "lines": st.lists(texts)}
        ),
        note=st.none() | texts,
        started=st.none() | st.floats(0, 4e9),
    )
)
def test_anything_can_be_shown(job: JobStatus) -> None:
    assert job.state in shown(job_table([job], 400), width=400)
    assert job.state in shown(description(job))
    assert shown(job_table([job], 20), width=20)

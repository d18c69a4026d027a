"""What a benchmark's run leaves to read: both reports say the same, and name nothing private; and how scripts end."""

from __future__ import annotations

import html
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def open_folder(path: Path, settings: dict | None = None):
    from support.results import ResultsFolder

    return ResultsFolder(path, "scaling", settings or {})


def small_report():
    from support.report import Report, Target

    return Report("Scaling", ["What it is."], [Target("Two ranks", "≥ 0.9", [("MLP", "0.8", False)])], [])


def test_both_reports_say_the_same_numbers(tmp_path: Path):
    from support.charts import OUR_COLOUR, Bar, bars
    from support.figures import Line, LinePlot, StackedBars
    from support.report import Report, Section, Table, Target

    lines = [Line("Horovod | ring", [(4, 0.125), (1e6, 12.75)], band=[(4, 0.11, 0.14), (1e6, 12.0, 13.0)])]
    report = Report(
        "Collectives <of> *all*",
        ["Bytes & time_s."],
        [Target("Bus bandwidth", "≥ 0.9", [("1 MB", "0.93", True), ("4 MB", "0.87", False)])],
        [
            Section(
                "Plot", ["Sixty-4."], figures=[LinePlot("P", "bytes", "GB/s", lines, True, True, [("memcpy", 17.5)])]
            ),
            Section(
                "Split", figures=[StackedBars("S", "ms", [("1 rank", {"a": 3.25}), ("2", {"a": 3.5, "b": 8.125})])]
            ),
            Section("Bars", charts=[bars("Shares", [Bar("x", 0.37, OUR_COLOUR)], 1.0)]),
            Section(
                "Table",
                tables=[Table(("Case", "n"), [("a|b", "4242")]), Table(("C", "m"), [("z", "1717")], fold="All")],
            ),
        ],
        {"took": "99 s"},
    )
    with open_folder(tmp_path) as results:
        results.leave_out("estimator", "needs TensorFlow 2.15")
        page, text = (path.read_text() for path in results.write(report))
    shown = html.unescape(re.sub(r"<style.*?</style>|<svg.*?</svg>|<[^>]+>", " ", page, flags=re.S))
    plain = re.sub(r"!\[[^\]]*\]\([^)]*\)|</?(details|summary)>|[*#|]|:?--:?", " ", text)
    plain = re.sub(r"\\(.)", r"\1", html.unescape(plain))
    for each in (shown, plain):
        for number in (
            "0.93",
            "0.87",
            "0.125 (0.11 to 0.14)",
            "12.75 (12 to 13)",
            "17.5",
            "3.25",
            "11.6",
            "4242",
            "1717",
            "99 s",
        ):
            assert number in each
        for words in ("needs TensorFlow 2.15", "not reached", "time_s", "commit", "command", "begun", "cores"):
            assert words in each
    numbers = [sorted(re.findall(r"\d+(?:[.,]\d+)*", each)) for each in (shown, plain)]
    assert numbers[0] == numbers[1]
    for name in re.findall(r"\]\((.*?)\)", text):
        drawing = (tmp_path / name).read_text()
        assert drawing.startswith("<svg") and "prefers-color-scheme" in drawing


def test_reports_name_neither_this_machine_nor_places_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = str(BENCHMARKS / "scaling.py")
    arguments = [
        "--ranks",
        "2",
        "--out",
        "/secret/a",
        "--json=/secret/b",
        "--dir",
        str(Path.home() / "scratch"),
        "--fresh",
    ]
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with open_folder(tmp_path) as results:
        texts = [path.read_text() for path in results.write(small_report())]
    for text in texts:
        assert "python benchmarks/scaling.py --ranks 2 --dir" in text
        assert "~/scratch" in text
        for private in ("secret", socket.gethostname(), str(REPOSITORY), str(Path.home())):
            assert private not in text


def test_a_quick_run_says_so_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture):
    with open_folder(tmp_path, {"quick": True}) as results:
        results.conclude(small_report())
        texts = [(tmp_path / name).read_text() for name in ("report.html", "report.md")]
    for text in (*texts, capsys.readouterr().out):
        assert text.count("none of its figures mean anything") == 1


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from support.usage import UsageError, run_main

class Ours:
    def __enter__(self): return self
    def __exit__(self, *_): Path("left").write_text("cleaned up")

def main():
    if sys.argv[1] == "mistake":
        raise UsageError("--ranks: 8 ranks\\nbut 2 slots")
    with Ours():
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(20)
    return 0

run_main(main)
"""


@pytest.mark.parametrize(
    ("how", "code"), [("mistake", 2), (str(signal.SIGTERM.value), 143), (str(signal.SIGINT.value), 130)]
)
def test_scripts_tell_mistakes_and_clean_up_when_stopped(tmp_path: Path, how: str, code: int):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", how], cwd=tmp_path, env={"PYTHONPATH": str(BENCHMARKS)}, capture_output=True,
        text=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    if how == "mistake":
        assert done.stderr == "script.py: error: --ranks: 8 ranks\nscript.py: error: but 2 slots\n"
    else:
        assert (tmp_path / "left").read_text() == "cleaned up"

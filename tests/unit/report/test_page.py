"""The report in a real browser."""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml

from hpc_train.report.compare import write_comparison
from hpc_train.report.page import write_report
from hpc_train.tuning.report.page import write_study_report
from tests.job_dirs import a_job
from tests.study_runs import make_study, run_trials

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MEASURE = """
<script>
addEventListener("load", () => {
  const shown = name => [...document.querySelectorAll("figure svg." + name)]
    .filter(svg => svg.getBoundingClientRect().width > 0);
  const svgs = [...shown("wide"), ...shown("narrow")];
  const texts = svgs.flatMap(svg => [...svg.querySelectorAll("text")]);
  const outside = svgs.filter(svg => svg.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
  const cut = texts.filter(text => {
    const box = text.getBoundingClientRect(), around = text.ownerSVGElement.getBoundingClientRect();
    return box.left < around.left - 1 || box.right > around.right + 1 || box.bottom > around.bottom + 1;
  });
  parent.postMessage({
    scroll: document.documentElement.scrollWidth, width: innerWidth, narrow: shown("narrow").length,
    wide: shown("wide").length, outside: outside.length, cut: cut.map(text => text.textContent),
    smallest: Math.min(...texts.map(text => parseFloat(getComputedStyle(text).fontSize) *
      text.ownerSVGElement.getBoundingClientRect().width / text.ownerSVGElement.viewBox.baseVal.width)),
    paper: getComputedStyle(document.body).backgroundColor,
    sideways: [...document.querySelectorAll(".scroll")].filter(one => one.checkVisibility() &&
      one.scrollWidth > one.clientWidth + 1).length,
    thin: [...document.querySelectorAll(".many td, .many th")].filter(cell => cell.textContent.length > 3 &&
      cell.getBoundingClientRect().width < 40).length,
    line: getComputedStyle(svgs[0].querySelector("path[style*='--c1']")).stroke,
  }, "*");
});
</script></body>"""
FRAME = """<body style="margin: 0"><iframe src="{page}" style="border: 0; width: {width}px; height: 2000px"></iframe>
<pre id="told"></pre><script>
addEventListener("message", event => document.getElementById("told").textContent = JSON.stringify(event.data));
</script></body>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no browser: apt-get install chromium")
        pytest.skip("no browser")

    def run(*arguments):
        profile = tmp_path_factory.mktemp("profile")
        command = [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600)

    return run


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    jobs = [a_job(folder / f"job{i}", ranks=ranks, learning_rate=0.1 / ranks) for i, ranks in enumerate((2, 20))]
    written = [write_report(jobs[0]), write_report(jobs[1]), write_comparison(jobs, folder / "compare.html")]
    sweep = [a_job(folder / f"fashion_mnist_20261123_0815{i:02}", learning_rate=0.1 / (i + 1)) for i in range(12)]
    for i, path in enumerate(sweep):
        job = json.loads(json.dumps(yaml.safe_load((path / "job.yaml").read_text())))
        job["params"] |= {f"setting_number_{k}": f"value {i} of {'x' * 20 * (k % 3)} {k}" for k in range(14)}
        (path / "job.yaml").write_text(json.dumps(job))
    written.append(write_comparison(sweep, folder / "sweep.html"))
    study = run_trials(make_study(folder / "study", max_trials=40, early_stopping="asha"))
    written.append(write_study_report(study, "digits"))
    return dict(zip(("report", "many ranks", "comparison", "sweep", "study"), written, strict=True))


def look_at(browser, page, width, dark=False):
    """What the page is like in a window of this width."""
    text = page.read_text()
    measured = page.with_name("measured.html")
    measured.write_text(re.sub("<meta http-equiv[^>]*>", "", text).replace("</body>", MEASURE))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(page=measured.name, width=width))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = browser(
        scheme, "--virtual-time-budget=5000", f"--window-size={max(width, 600)},2000", "--dump-dom", frame.as_uri()
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return json.loads(
        re.search('<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)[1]
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
    )


@pytest.mark.parametrize("name", ["report", "many ranks", "comparison", "study"])
def test_on_a_phone_nothing_is_cut_off_and_nothing_is_tiny(browser, pages, name):
    seen = look_at(browser, pages[name], 390)
    assert seen["width"] == 390 and seen["scroll"] <= 390
    assert seen["narrow"] > 5 and seen["wide"] == 0 and seen["outside"] == 0 and seen["cut"] == []
    assert seen["smallest"] >= 11


@pytest.mark.parametrize("width", [600, 1280])
def test_on_a_screen(browser, pages, width):
    seen = look_at(browser, pages["report"], width)
    assert seen["scroll"] <= width
    assert seen["wide"] > 5 and seen["narrow"] == 0 and seen["outside"] == 0 and seen["cut"] == []
    assert seen["smallest"] >= 10


@pytest.mark.parametrize("width", [600, 1280])
def test_a_study_on_a_screen(browser, pages, width):
    seen = look_at(browser, pages["study"], width)
    assert seen["scroll"] <= width and seen["outside"] == 0 and seen["cut"] == []
    assert seen["wide"] == 3 and seen["narrow"] == 8 and seen["smallest"] >= 10


@pytest.mark.parametrize("name", ["comparison", "sweep"])
def test_many_jobs_are_a_screen_wide(browser, pages, name):
    seen = look_at(browser, pages[name], 1280)
    assert seen["scroll"] <= 1280 and seen["sideways"] == 0 and seen["thin"] == 0 and seen["outside"] == 0


def test_light_and_dark(browser, pages):
    light, dark = (look_at(browser, pages["report"], 1280, dark) for dark in (False, True))
    assert brightness(light["paper"]) > 240 and brightness(dark["paper"]) < 40
    for seen in (light, dark):
        assert abs(brightness(seen["line"]) - brightness(seen["paper"])) > 90


def brightness(colour):
    red, green, blue = map(float, re.findall(r"[\d.]+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_the_page_as_it_is_is_quiet_and_prints(browser, pages, tmp_path):
    out = tmp_path / "page.pdf"
    done = browser("--no-pdf-header-footer", f"--print-to-pdf={out}", pages["report"].as_uri())
    assert "CONSOLE" not in done.stderr, done.stderr
    assert out.stat().st_size > 20_000

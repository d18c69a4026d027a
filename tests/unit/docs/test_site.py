"""The documentation site: it is built without a warning, holds every page, and no link in it leads nowhere."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support import LIMIT_SECS, REPOSITORY

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src"}


class Page(HTMLParser):
    """What a page links to, and the names in it that others may link to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.names |= {str(found[key]) for key in ("id", "name") if found.get(key)}
        if tag in LINKS and found.get(LINKS[tag]):
            self.links.append(str(found[LINKS[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """All pages by their files."""
    folder = tmp_path_factory.mktemp("site")
    how = ["-qW", "--keep-going", "-c", "docs/site", "-d", folder / "doctrees", "-b", "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *how, ".", folder / "html"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {path: Page(path) for path in (folder / "html").rglob("*.html")}


def test_every_page_is_there(site: dict[Path, Page]) -> None:
    here = {path.stem for path in site if path.parent.name == "docs"}
    assert here == {path.stem for path in (REPOSITORY / "docs").glob("*.md")}
    index = next(page for path, page in site.items() if path.name == "index.html" and path.parent.name == "docs")
    assert {f"{name}.html" for name in here - {"index"}} <= set(index.links)


def test_no_link_leads_nowhere(site: dict[Path, Page]) -> None:
    lost, followed = [], 0
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            followed += 1
            there = target in site if target.suffix == ".html" else target.is_file()
            if not there or (parts.fragment and unquote(parts.fragment) not in site[target].names | {"", "top"}):
                lost.append(f"{path.name}: {link}")
    assert not lost
    assert followed > 1000

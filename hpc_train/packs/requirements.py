"""Packages of a job's own: a pip file, resolved once against the environment, and installed beside it.

pip decides, with the user's own settings for it (PIP_NO_INDEX, PIP_FIND_LINKS and others). What the environment has
already stays as it is: its versions are constraints, so that none of its packages is replaced.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.files import open_to_read, read_bytes, replace_text
from hpc_train.text import listed, visible

PIP_SECS = 1800
MAX_REPORT_BYTES = 256 << 20
MAX_LINES = 8
_NORMAL = re.compile(r"[-_.]+")
_SOURCE = re.compile(r"(-i|-f|--(index-url|extra-index-url|no-index|find-links|trusted-host))\b")
_QUIET = ("--disable-pip-version-check", "--no-input", "--no-color")


def resolve_requirements(python: Path, requirements: Path) -> tuple[str, ...]:
    """What is to be installed beside the environment of `python`, as lines for pip, each one exact file or commit.

    Runs pip, which may download, and builds what has no wheel; writes nothing that is left.

    Raises:
        UserError: `requirements` cannot be read or fulfilled, or would replace a package of the environment.
    """
    try:
        open_to_read(requirements, follow=True).close()
    except OSError as error:
        raise UserError(f"{requirements}: cannot be read: {error.strerror} (resources.requirements)") from None
    with tempfile.TemporaryDirectory(prefix="hpc_train-requirements-") as folder:
        installed = _installed(python)
        constraints, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        pinned = {name: version for name, version in installed.items() if name not in ("hpc-train", "pip")}
        replace_text(constraints, "".join(f"{name}=={version}\n" for name, version in pinned.items()), to_disk=False)
        words = ("--dry-run", "--report", str(report), "-r", str(requirements), "-c", str(constraints))
        _pip(python, ("install", *_QUIET, *words), requirements.parent, requirements)
        found = json.loads(read_bytes(report, MAX_REPORT_BYTES))["install"]
    replaced = [one["metadata"]["name"] for one in found if _normal(one["metadata"]["name"]) in installed]
    if replaced:
        raise UserError(
            f"{requirements}: would replace {listed(replaced)} of the environment, which hpc_train needs: ask "
            "for the version that is there, or for none (resources.requirements)"
        )
    return tuple(_line(one) for one in found)


def install_requirements(python: Path, lines: Sequence[str], folder: Path, requirements: Path) -> None:
    """Installs what `resolve_requirements` has found into the new folder `folder`.

    Raises:
        UserError: pip cannot; what it has left in `folder` is the caller's to remove.
    """
    with tempfile.TemporaryDirectory(prefix="hpc_train-requirements-") as temporary:
        exact = Path(temporary) / "requirements.txt"
        replace_text(exact, "".join(f"{line}\n" for line in [*_sources(requirements), *lines]), to_disk=False)
        words = ("--no-deps", "--target", str(folder), "-r", str(exact))
        _pip(python, ("install", *_QUIET, *words), requirements.parent, requirements)


def _installed(python: Path) -> dict[str, str]:
    words = [str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
    try:
        asked = subprocess.run(words, capture_output=True, timeout=PIP_SECS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python}: pip cannot be asked what there is (resources.requirements): {error}") from None
    if asked.returncode:
        raise UserError(
            f"{python}: has no pip, which resources.requirements needs: python -m ensurepip in that environment"
        )
    return {_normal(one["name"]): one["version"] for one in json.loads(asked.stdout)}


def _pip(python: Path, words: Sequence[str], cwd: Path, requirements: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PIP_TARGET", "PIP_USER", "PIP_PREFIX")}
    try:
        done = subprocess.run(
            [python, "-m", "pip", *words], capture_output=True, timeout=PIP_SECS, cwd=cwd, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{requirements}: pip has not ended within {PIP_SECS} s (resources.requirements)") from None
    if done.returncode:
        said = said_by_pip(done.stderr.decode(errors="replace"), done.stdout.decode(errors="replace"))
        raise UserError(f"{requirements}: pip cannot install it (resources.requirements): {said}")


def said_by_pip(text: str, progress: str = "") -> str:
    """What pip complains of, in one line of what matters: of its error output, and why packages conflict. Pure."""
    conflict = progress.partition("The conflict is caused by:\n")[2].partition("\n\n")[0]
    lines = [visible(line.strip()) for line in (conflict + "\n" + text).splitlines() if line.strip()]
    told = [line for line in lines if not line.lower().startswith(("warning:", "[notice]", "note:", "hint:"))]
    short = [re.sub(r" \(from versions: .*?\)", "", line)[:300] for line in told[:MAX_LINES]]
    return "; ".join(line.removeprefix("ERROR: ") for line in short) or "it gives no reason"


def _normal(name: str) -> str:
    return _NORMAL.sub("-", name).lower()


def _line(found: dict[str, Any]) -> str:
    """One package of pip's report as a requirement that only it fulfills."""
    name, where = found["metadata"]["name"], found["download_info"]
    url = where["url"]
    if "vcs_info" in where:
        return f"{name} @ {where['vcs_info']['vcs']}+{url}@{where['vcs_info']['commit_id']}"
    hashes = where.get("archive_info", {}).get("hashes", {})
    # Not by --hash, with which pip wants one of each, and folders and commits have none.
    check = f"{'&' if '#' in url else '#'}sha256={hashes['sha256']}" if "sha256" in hashes else ""
    return f"{name} @ {url}{check}"


def _sources(requirements: Path) -> list[str]:
    """The lines of a pip file that say where packages are looked for: what is built needs others."""
    text = read_bytes(requirements, MAX_REPORT_BYTES, follow=True).decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if _SOURCE.match(line.strip())]

"""run.json: how a run of a benchmark was started, on what, and how far it came."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from support.launch import REPOSITORY

RUN = "run.json"
LASTING = ("cpu", "cores", "gpus", "nodes")
"""Of a machine: what must not change between the parts of a run."""


def read_run(folder: Path) -> dict[str, Any] | None:
    """What run.json of a folder says; None where there is none, or it is none of ours."""
    try:
        told = json.loads((folder / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    needed = {"benchmark": str, "settings": dict, "units": dict, "machine": dict, "versions": dict, "drawings": list}
    return told if isinstance(told, dict) and all(isinstance(told.get(k), v) for k, v in needed.items()) else None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What keeps a run from going on, a line each: another benchmark, other settings, another machine. Pure."""
    if before["benchmark"] != now["benchmark"]:
        return [f"benchmark {before['benchmark']}, not {now['benchmark']}"]
    names = dict.fromkeys([*before["settings"], *now["settings"]])
    pairs = [(name, before["settings"].get(name), now["settings"].get(name)) for name in names]
    pairs += [(name, before["machine"].get(name), now["machine"].get(name)) for name in LASTING]
    return [f"{name}: {json.dumps(old)} there, {json.dumps(new)} now" for name, old, new in pairs if old != new]


def joined(before: str | None, now: str) -> str:
    """Both versions where a run went on with another one. Pure."""
    known = before.split(" then ") if before else []
    return " then ".join(known if now in known[-1:] else [*known, now])


def command_line() -> str:
    """How this script was started, from the checkout; without where its results go, and nobody's home is named."""
    script, *arguments = sys.argv
    kept, skip = [], False
    for word in arguments:
        takes = word in ("--out", "--json")
        if not (skip or takes or word == "--fresh" or word.startswith(("--out=", "--json="))):
            kept.append(word)
        skip = takes
    path = Path(script).resolve()
    name = str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else path.name
    line = shlex.join(["python", name, *kept])
    return line.replace(f"{REPOSITORY}/", "").replace(str(Path.home()), "~")


def now() -> str:
    """The time to a minute, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")

"""What the checks of `hpc-train doctor` are made of: findings, and programs with a time limit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hpc_train.distributed.silence import CHATTER
from hpc_train.outcome import signal_name
from hpc_train.processes import kill, of_session

Result = Literal["ok", "warning", "fails", "not here"]

MARK = "hpc-train doctor: "
"""Begins a line of JSON in what a program of ours prints, whatever else comes out with it."""
GRACE_SECS = 3.0
"""How long a program that is ended may take to end its own: mpirun needs one to three seconds."""
POLL_SECS = 0.02
_OUTPUT_BYTES = 1 << 20
_LAST_WORDS_CHARACTERS = 300


@dataclass(frozen=True)
class Finding:
    """What one check found: `advice` says what to do, None where nothing is; `needed` whether the demo needs it."""

    check: str
    result: Result
    found: str
    advice: str | None = None
    needed: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a program ended: its exit code (None: it did not start, or not end), and what it wrote.

    `failure` says in words what went wrong, None where nothing did.
    """

    code: int | None
    out: str = ""
    err: str = ""
    failure: str | None = None


def emit(**results: object) -> None:
    """Prints a line that `marked` finds. For the programs that are tried out."""
    print(f"\n{MARK}{json.dumps(results)}", flush=True)


def marked(text: str) -> dict[str, Any]:
    """All that the lines after MARK in `text` report, merged. Pure."""
    results: dict[str, Any] = {}
    for line in text.splitlines():
        with suppress(ValueError):
            found = json.loads(line.partition(MARK)[2])
            results.update(found if isinstance(found, dict) else {})
    return results


def last_words(text: str) -> str:
    """The line of `text` that most likely says what went wrong, shortened; empty where there is none. Pure."""
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]", " ", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if re.search(r"\w", line) and not re.match(CHATTER, line)]
    errors = [line for line in lines if line.startswith("hpc-train: error: ")]
    # Native code may write on after Python's last word.
    errors = errors or [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*: ", line)]
    # mpirun puts its notices between two lines of dashes each, and what happened into their first paragraph.
    inside = [part.strip() for part in re.split(r"(?m)^(?:-{70,}|={70,})$", text)[1::2] if part.strip()]
    notices = [" ".join(part.split("\n\n")[0].split()) for part in inside]
    line = (errors or notices or lines or [""])[-1].removeprefix("hpc-train: error: ")
    return line if len(line) <= _LAST_WORDS_CHARACTERS else line[:_LAST_WORDS_CHARACTERS] + " …"


class Tool:
    """A program that runs beside others until its outcome is asked for.

    It is ended, with all that it has started, when it has run for longer than `limit_secs`. `name` is what messages
    call it, where the program's own name says little.
    """

    def __init__(
        self, command: Sequence[str], limit_secs: float, env: Mapping[str, str] | None = None, name: str | None = None
    ) -> None:
        self._name, self._limit_secs = name or Path(command[0]).name, limit_secs
        self._end_time = time.monotonic() + limit_secs
        self._process: subprocess.Popen[bytes] | None = None
        self._outcome: Outcome | None = None
        try:
            # Not pipes: what the program leaves behind may hold them open for ever.
            self._out, self._err = _memory_file(), _memory_file()
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
            )
        except FileNotFoundError:
            self._outcome = Outcome(None, failure=f"there is no {self._name} on PATH")
        except OSError as error:
            self._outcome = Outcome(None, failure=f"{self._name} cannot be started: {error.strerror}")

    def outcome(self) -> Outcome:
        """Waits for its end."""
        if self._outcome is None:
            assert self._process is not None
            while self._process.poll() is None and time.monotonic() < self._end_time:
                time.sleep(POLL_SECS)
            code = self._process.poll()
            self.end()
            out, err = _text(self._out), _text(self._err)
            self._outcome = Outcome(code, out, err, _failure(self._name, code, self._limit_secs, out, err))
        return self._outcome

    def end(self) -> None:
        """Ends what still runs of it. One that the kernel holds fast (a file system that is gone) is left alone."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        patience = time.monotonic() + GRACE_SECS
        while process.poll() is None and time.monotonic() < patience:
            time.sleep(POLL_SECS)
        kill(of_session(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)


class Tools(ExitStack):
    """Starts programs, and ends those that nobody has waited for. A context manager."""

    def start(
        self, command: Sequence[str], limit_secs: float, env: Mapping[str, str] | None = None, name: str | None = None
    ) -> Tool:
        """Starts `command`; see Tool."""
        tool = Tool(command, limit_secs, env, name)
        self.callback(tool.end)
        return tool


def _failure(name: str, code: int | None, limit_secs: float, out: str, err: str) -> str | None:
    if code == 0:
        return None
    if code is None:
        return f"{name} did not end within {limit_secs:g} s"
    words = last_words(err) or last_words(out)
    if code < 0:
        by = signal_name(128 - code) or f"signal {-code}"
        return f"{name} was ended by {by}" + (f" ({words})" if words else "")
    return words or f"{name} ended with exit code {code}"


def _memory_file() -> BinaryIO:
    try:
        return os.fdopen(os.memfd_create("hpc-train-doctor"), "w+b")
    except (AttributeError, OSError):  # Linux before 3.17
        return tempfile.TemporaryFile()


def _text(file: BinaryIO) -> str:
    return os.pread(file.fileno(), _OUTPUT_BYTES, 0).decode(errors="replace")

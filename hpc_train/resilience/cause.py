"""What a failure comes down to: the message that was raised first, and where, out of what TensorFlow and Keras wrap."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import JobEndedError

_KERAS = re.compile(r"Exception encountered when calling .*?\n\n(.*)\n\nArguments received by ", re.DOTALL)
"""Keras puts the message of what a layer raises between these, in bold type."""
_BOLD = re.compile(r"\x1b\[[01]m")
_TRACEBACK = "Traceback (most recent call last):"
"""In an error of TensorFlow: of the Python function that an operation has called."""
_AUTOGRAPH = "in user code:\n"
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (\S+)', re.MULTILINE)
_FUNCTION_NODE = re.compile(r"\{\{function_node [^}]*\}\} ?")
_OPERATION = re.compile(r"\n*[ \t]*(?:\[\[\{\{node .*|\[Op:[^\]\n]*\].*)", re.DOTALL)
"""What TensorFlow adds after the message."""
_REFUSED = re.compile(r"(?:UserError: |assertion failed: \[)([^\[\]]+ ids are outside its table, [^\[\]]*\[[^\[\]]*\])")
"""As in parallel.ids, raised where it runs eagerly, or asserted in a graph."""

_LIBRARIES = tuple(
    {f"{Path(path)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
    | {f"{Path(__file__).parents[1]}/"}
)


@dataclass(frozen=True)
class Cause:
    """What was raised.

    Attributes:
        message: With the kind of the error, as in "ValueError: no label may be 42".
        where: The user's line, as in "/code/model.py, line 7, in augment"; None where it is in none.
    """

    message: str
    where: str | None = None


def cause_of(error: BaseException) -> Cause:
    """What `error` comes down to. Pure."""
    if isinstance(error, JobEndedError):
        return Cause(str(error))
    kind, text = type(error).__name__, str(error)
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    where = _users(frames)
    if match := _KERAS.search(text):
        text = _BOLD.sub("", match[1]).strip()
    if _TRACEBACK in text:
        text = _OPERATION.sub("", text.rpartition(_TRACEBACK)[2])
        return Cause(_after_frames(text), _users(_frames_in(text)) or where)
    if _AUTOGRAPH in text:
        text = text.rpartition(_AUTOGRAPH)[2]
        return Cause(_after_frames(text), _users(_frames_in(text)) or where)
    if hasattr(error, "op") and hasattr(error, "error_code"):  # TensorFlow's, which is not imported for this
        text = _OPERATION.sub("", _FUNCTION_NODE.sub("", text)).strip()
        where = _users(_frames_in(text)) or where
        text = text[max((match.end() for match in _FRAME.finditer(text)), default=0) :]
        text = text.removeprefix("Graph execution error:").strip().replace("\\'", "'")  # escaped by its Assert
    if not text and (line := _line_of(error)):
        text = line
    return Cause(f"{kind}: {text}" if text else kind, where)


def refused_batch(error: BaseException) -> str | None:
    """What a layer of this package says of ids that it cannot take, out of the error of a step; else None. Pure."""
    match = _REFUSED.search(cause_of(error).message)
    return match[1] if match else None


def _after_frames(text: str) -> str:
    """What follows a traceback's frames: less indented than they, it begins with the kind of the error."""
    lines = text.rstrip().split("\n")
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    if not frames:
        return text.strip()
    outer = len(lines[frames[-1]]) - len(lines[frames[-1]].lstrip())
    rest = lines[frames[-1] + 1 :]
    # Autograph indents the message as it does the frames; a traceback's frames are indented and its message is not.
    first = next((n for n, line in enumerate(rest) if line.strip() and len(line) - len(line.lstrip()) <= outer), None)
    return "\n".join(line.strip() for line in rest[first:]).strip() if first is not None else text.strip()


def _frames_in(text: str) -> list[tuple[str, int, str]]:
    return [(match[1], int(match[2]), match[3]) for match in _FRAME.finditer(text)]


def _users(frames: Iterable[tuple[str, int, str]]) -> str | None:
    """The innermost frame in a file that is not Python's, this package's, or installed; None: there is none."""
    found = None
    for path, line, function in frames:
        if not path.startswith(("<", *_LIBRARIES)) and "/site-packages/" not in path:
            found = f"{path}, line {line}, in {function}"
    return found


def _line_of(error: BaseException) -> str:
    """The line of code that has raised `error`: an assertion without a message is known by it."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].line or "" if frames else ""

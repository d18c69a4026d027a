"""YAML read safely, with the line of every key and value, and numbers as people write them.

PyYAML follows YAML 1.1, where `1e-3` is a string, `yes` is true and `1:30` is ninety. This loader resolves plain
scalars by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) and builds nothing but
dictionaries, lists, strings, numbers, booleans and null.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpc_train.errors import UserError
from hpc_train.files import read_bytes

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000
"""Keys and values of one file, so that no file takes more than a second or two to read."""
MAX_DIGITS = 100
SHOWN_CHARACTERS = 60

Location = tuple[str | int, ...]


class _Resolver(yaml.resolver.BaseResolver):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (typeshed has it so)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that either version of YAML would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.nan",
        "-+.0123456789",
    ),
    ("null", r"null|Null|NULL|~|", "~nN"),
):
    for _class in (_Resolver, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), [*_first, *([""] if _tag == "null" else [])]
        )


def dump_yaml(value: Any, lists_in_line: bool = False) -> str:
    """`value`, of plain types, as YAML that `read_yaml` and readers of YAML 1.1 read as the same. Pure.

    Args:
        lists_in_line: Lists and mappings of plain values are written as [a, b] and {a: b}.
    """
    style: dict[str, Any] = {"default_flow_style": False}
    if lists_in_line:
        style = {"default_flow_style": None, "width": 110, "allow_unicode": True}
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, **style)
    return text


class _Loader(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser, yaml.composer.Composer, _Resolver):
    """Composes nodes, and refuses aliases, depth and number while it does: what is refused takes no memory."""

    def __init__(self, text: str, path: Path, max_values: int = MAX_VALUES) -> None:
        yaml.reader.Reader.__init__(self, text)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)
        yaml.composer.Composer.__init__(self)
        _Resolver.__init__(self)
        self._path, self._max_values, self._depth, self._values = path, max_values, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        where = f"{self._path}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise UserError(f"{where}: an alias (*name); write the value out")
        self._values += 1
        if self._values > self._max_values:
            raise UserError(f"{where}: more than {self._max_values:,} keys and values, which no such file needs")
        if self._depth > MAX_DEPTH:
            raise UserError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


@dataclass(frozen=True)
class Document:
    """One YAML file: its value, and the line (from 1) of each location in it."""

    path: Path
    value: Any
    lines: dict[Location, int]
    mistakes: tuple[tuple[int, str], ...]
    """Lines and descriptions of what YAML allows but such a file does not: keys given twice, strange tags."""
    overrides: tuple[tuple[Location, str], ...] = ()
    """What was laid over the file, in order: where, and the option that set it."""

    def where(self, location: Location) -> str:
        """`path:line` of `location`, or the option that has set it or something around it."""
        for overridden, option in reversed(self.overrides):
            if location[: len(overridden)] == overridden:
                return option
        return f"{self.path}:{self.line(location)}"

    def line(self, location: Location) -> int:
        """The line of `location`, or of the closest thing around it."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


def read_value(text: str, name: str) -> Any:
    """The value that `text`, given by an option called `name`, is as YAML.

    Raises:
        UserError: It is not YAML, or what a job file may not hold.
    """
    try:
        node = _Loader(text, Path(name)).get_single_node()
    except yaml.YAMLError:
        raise UserError(f"{name}: {_shown(text)} is not valid YAML") from None
    mistakes: list[tuple[int, str]] = []
    value = None if node is None else _build(node, (), {}, mistakes)
    if mistakes:
        raise UserError(f"{name}: {mistakes[0][1]}")
    return value


def read_yaml(path: Path, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES, follow: bool = True) -> Document:
    """Reads one YAML document; without `follow`, none that a link leads to.

    Raises:
        UserError: The file cannot be read, is too large or too deep, uses aliases, or is not YAML. With the
            limits of a job file, any file is refused or read within seconds and some 100 MB.
    """
    try:
        raw = read_bytes(path, max_bytes, follow)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UserError(f"{path}: larger than {max_bytes // 1024} KiB, which no such file needs") from None
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        node = _Loader(raw.decode("utf-8"), path, max_values).get_single_node()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    lines: dict[Location, int] = {}
    mistakes: list[tuple[int, str]] = []
    value = None if node is None else _build(node, (), lines, mistakes)
    return Document(path, value, lines, tuple(mistakes))


def _build(node: yaml.Node, at: Location, lines: dict[Location, int], mistakes: list[tuple[int, str]]) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if isinstance(node, yaml.MappingNode):
        _check_tag(node, "map", line, mistakes)
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, key_line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                mistakes.append((key_line, "a key that is not a plain word"))
                continue
            here = (*at, key)
            if key in mapping:
                mistakes.append((key_line, f"{'.'.join(map(str, here))}: given twice; first on line {lines[here]}"))
                continue
            lines[here] = key_line
            mapping[key] = _build(value_node, here, lines, mistakes)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        _check_tag(node, "seq", line, mistakes)
        return [_build(item, (*at, i), lines, mistakes) for i, item in enumerate(node.value)]
    return _scalar(node, line, mistakes)


def _scalar(node: yaml.Node, line: int, mistakes: list[tuple[int, str]]) -> Any:
    text = node.value
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    try:
        if kind == "int":
            if len(text) > MAX_DIGITS:
                raise ValueError
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        mistakes.append((line, f"{_shown(text)} is not a number that can be used"))
        return text
    if kind == "bool":
        return text.lower() == "true"
    if kind == "null":
        return None
    _check_tag(node, "str", line, mistakes)
    return text


def _check_tag(node: yaml.Node, expected: str, line: int, mistakes: list[tuple[int, str]]) -> None:
    if node.tag != f"tag:yaml.org,2002:{expected}":
        mistakes.append((line, f"the tag {_shown(node.tag)} is not allowed; write the plain value"))


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…")

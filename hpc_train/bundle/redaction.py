"""What of texts for others is put as ***. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from hpc_train.config.secrets import MASK
from hpc_train.telemetry.environment import KEY_FORM, SHORTEST_SECRET

SECRET_WORDS = {
    *("token", "secret", "password", "passwd", "passphrase", "passcode", "pwd", "apikey", "credential", "credentials"),
    *("authorization", "cookie", "jwt"),
}
WITH_ANOTHER = {"key", "pass", "auth", "private", "signature", "sig", "cert", "bearer"}
"""Words that make a name one of a secret: by themselves, and beside another word of it (`api_key`) or in an address."""

_HEADS = (
    re.compile(r"(?P<mark>[?&])(?P<name>[\w.-]{1,80})="),
    re.compile(r"(?<![\w-])--(?P<name>[a-zA-Z][\w-]{0,80})(?:=|[\"']?[ \t]*,?[ \t]*\n?[ \t]*(?:-[ ]+)?)"),
    re.compile(r"(?<![\w.-])(?P<name>[\w.-]{1,80})[\"']?[ \t]*[=:]+[ \t]*"),
)
"""What comes before a value: a name in an address, an option, any other name."""
_VALUE = re.compile(
    r""" "(?:\\.|[^"\\\n])*"? | '[^'\n]*'? | (?:bearer|basic)[ ]+[^\s,;&"'}\])]+ | [^\s,;&"'}\])]+ """, re.I | re.X
)
_KNOWN = re.compile(rf"(?i:{KEY_FORM})[\w.+/=-]*|(?i:\bauthorization:?[ ]+(?:bearer|basic)[ ]+)[\w+/.=-]+")
_IN_ADDRESS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@'\"]{1,1000}@")
_BASE64 = r"[A-Za-z0-9+/=]{1,100}"
_BLOCK = re.compile(
    rf"-----BEGIN [^-\n]{{1,60}}-----(?:\r?\n[ \t]*(?:{_BASE64}|[\w-]{{1,40}}: [^\n]{{0,200}})?(?=\r?\n|$))*"
    r"(?:\r?\n[ \t]*-----END [^-\n]{1,60}-----)?"
)
_END_OF_BLOCK = re.compile(rf"(?m)^(?:{_BASE64}\n)+-----END [^-\n]{{1,60}}-----")
_PLAIN = re.compile(r"(?i)[-+]?[\d.,]+(?:e[-+]?\d+)?%?|true|false|null|none|yes|no|[\[{(<…]*|\*+")
"""Values that are no secret, whatever they are called."""
_PARTS = re.compile(r"[_.\-\s]+")


class Redaction:
    """Takes secrets out of texts, and counts them.

    Args:
        values: Those that the job was given: each is *** wherever it occurs, also as JSON, Python and a shell quote it,
            and each of its lines, as far as these have SHORTEST_SECRET characters; shorter ones are in any text.

    Attributes:
        count: How many places were changed.
    """

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= SHORTEST_SECRET}
        self._values = sorted(forms, key=len, reverse=True)
        self.count = 0

    def content(self, name: str, text: str) -> str:
        """What `text` says without secrets; of .json and .jsonl, all that are JSON stay it."""
        if name.endswith(".json"):
            return self._of_json(text)
        if name.endswith(".jsonl"):
            return "".join(self._of_json(line) for line in text.splitlines(keepends=True))
        return self.text(text)

    def text(self, text: str) -> str:
        """`text` without the job's secrets, and without what looks like one.

        That is keys by their form, values by their names, users and passwords in addresses, and blocks of keys and
        certificates. Keys that are digits alone cannot be told from digests, and stay.
        """
        for value in self._values:
            self.count += text.count(value)
            text = text.replace(value, MASK)
        for pattern in (_BLOCK, _END_OF_BLOCK):
            text = self._replaced(pattern, MASK, text)
        text = self._replaced(_IN_ADDRESS, rf"\g<1>{MASK}@", text)
        text = self._replaced(_KNOWN, MASK, text)
        for head in _HEADS:
            text = "".join(self._without_values(head, text))
        return text

    def _of_json(self, text: str) -> str:
        body = text.rstrip("\r\n")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return self.text(text)
        before = self.count
        value = self._of_value(value)
        if self.count == before:
            return text
        indent = 1 if "\n" in body else None
        return json.dumps(value, indent=indent, ensure_ascii=False) + text[len(body) :]

    def _of_value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {self.text(key): self._of_value(one, key) for key, one in value.items()}
        if isinstance(value, list):
            names = ["", *(one[2:] if isinstance(one, str) and one.startswith("--") else "" for one in value)]
            return [self._of_value(one, before or name) for before, one in zip(names, value, strict=False)]
        if not isinstance(value, str):
            return value
        if is_secret(name) and not _PLAIN.fullmatch(value):
            self.count += 1
            return MASK
        return self.text(value)

    def _replaced(self, pattern: re.Pattern[str], by: str, text: str) -> str:
        text, count = pattern.subn(by, text)
        self.count += count
        return text

    def _without_values(self, head: re.Pattern[str], text: str) -> Iterator[str]:
        """`text` in parts, without the values that follow heads with a secret's name."""
        done = 0
        for found in head.finditer(text):
            if found.start() < done or not is_secret(found["name"], asked="mark" in found.groupdict()):
                continue
            value = _VALUE.match(text, found.end())
            if value is None or MASK in value[0] or _PLAIN.fullmatch(value[0].strip("\"'")):
                continue
            self.count += 1
            quote = value[0][0] if value[0][0] in "\"'" else ""
            yield f"{text[done : found.end()]}{quote}{MASK}{quote}"
            done = value.end()
        yield text[done:]


def is_secret(name: str, asked: bool = False) -> bool:
    """Whether `name` is that of a secret; `asked`: in an address, where one word says enough."""
    parts = [part.lower() for part in _PARTS.split(name) if part]
    if any(part in SECRET_WORDS for part in parts):
        return True
    return (asked or len(parts) > 1) and any(part in WITH_ANOTHER for part in parts)


def _forms(value: str) -> Iterator[str]:
    for one in {value, *value.splitlines()}:
        yield from (one, json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1], repr(one)[1:-1])
        yield shlex.quote(one).strip("'")

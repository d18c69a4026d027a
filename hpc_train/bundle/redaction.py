"""What of texts for others is put as ***. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpc_train.config.secrets import MASK
from hpc_train.telemetry.environment import SHORTEST_SECRET

_KEYED = re.compile(
    r"""(?ix)
    (?P<name> [\w.-]* (?: password | passwd | passphrase | passcode | secret | token | api[_-]?key | access[_-]?key
                        | private[_-]?key | credentials? | authorization | cookie | signature ) [\w.-]* )
    (?P<between> ["']? \s* [=:]+ \s* )
    (?P<value> " (?:\\.|[^"\\\n])* "? | ' [^'\n]* '? | (?: bearer | basic ) \s+ \S+ | [^\s,;&"'}\])]+ )
    """
)
_KNOWN = re.compile(
    r"""(?x)
      (?<![A-Za-z0-9]) (?: AKIA | ASIA | AROA ) [A-Z0-9]{16}                      # Amazon
    | (?<![A-Za-z0-9]) (?: gh[oprsu]_ | github_pat_ | glpat- | hf_ | sk- | xox[a-z]- | AIza | ya29\. | npm_ | pypi-
                         | wandb_ | nvapi- ) [\w.-]{10,}
    | (?<![A-Za-z0-9]) eyJ[\w-]{5,} \. [\w-]+ (?: \. [\w-]* )?                     # a JSON web token
    | (?i: \b (?: bearer | basic ) \s+ ) [A-Za-z0-9+/_.=-]{8,}
    """
)
_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@'\"]+@")
_BLOCK = re.compile(r"-----BEGIN [^-\n]*-----.*?(?:-----END [^-\n]*-----|\Z)", re.DOTALL)


class Redaction:
    """Takes secrets out of texts, and counts them.

    Args:
        values: Those that the job was given: each is *** wherever it occurs, as far as it has SHORTEST_SECRET
            characters; shorter ones are in any text.

    Attributes:
        count: How many places were changed.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value for value in values if len(value) >= SHORTEST_SECRET}, key=len, reverse=True)
        self.count = 0

    def text(self, text: str) -> str:
        """`text` without the job's secrets, and without what looks like one.

        That is keys by their form, values by their names, users and passwords in addresses, and blocks of keys and
        certificates.
        """
        for value in self._values:
            self.count += text.count(value)
            text = text.replace(value, MASK)
        text = self._replaced(_BLOCK, MASK, text)
        text = self._replaced(_IN_URL, rf"\g<1>{MASK}@", text)
        text = self._replaced(_KNOWN, MASK, text)
        return _KEYED.sub(self._named, text)

    def _replaced(self, pattern: re.Pattern[str], by: str, text: str) -> str:
        text, count = pattern.subn(by, text)
        self.count += count
        return text

    def _named(self, match: re.Match[str]) -> str:
        value = match["value"]
        if MASK in value or value.strip("\"'") in _PLAIN:
            return match[0]
        self.count += 1
        quote = value[0] if value[0] in "\"'" else ""
        return f"{match['name']}{match['between']}{quote}{MASK}{quote}"


_PLAIN = frozenset(("", "null", "None", "true", "false", "True", "False", "{", "["))
"""Values that are no secret, whatever they are called."""

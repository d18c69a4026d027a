"""Vocabularies: read from files, and given as texts."""

from __future__ import annotations

import re

from hpc_train.arguments import shown
from hpc_train.canned.columns import VocabularyColumn
from hpc_train.errors import UserError
from hpc_train.files import read_bytes

MAX_VOCABULARY_BYTES = 1 << 30

_WHOLE = re.compile(r"-?(0|[1-9]\d*)")


def read_vocabulary(path: str, size: int | None, are_texts: bool, where: str) -> list[str]:
    """The first `size` lines of a file in UTF-8; None: all.

    Raises:
        UserError: The file cannot be read, has fewer lines, one twice, or one that is no whole number where
            `are_texts` is not so; `where` is whose the file is.
    """
    whose = f"{where}: vocabulary_file: {path}"
    try:
        text = read_bytes(path, MAX_VOCABULARY_BYTES, follow=True).decode()
    except OSError as error:
        raise UserError(f"{whose}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{whose}: is not UTF-8, first at byte {error.start:,}; convert it") from None
    lines = text.replace("\r", "").removesuffix("\n").split("\n") if text else []
    if len(lines) < (size or 1):
        raise UserError(f"{whose}: has {len(lines):,} lines, and vocabulary_size is {size or 1:,}; give one a value")
    known: dict[str, int] = {}
    for number, line in enumerate(lines[:size], start=1):
        if line in known:
            raise UserError(f"{whose}: line {number:,} is that of line {known[line]:,}, {shown(line)}; leave one out")
        if not are_texts and not _WHOLE.fullmatch(line):
            raise UserError(
                f"{whose}: line {number:,}, {shown(line)}, is no whole number; give dtype='string' for texts"
            )
        known[line] = number
    return list(known)


def vocabulary_of(column: VocabularyColumn) -> list[str]:
    """Its entries, in the order of their numbers.

    Raises:
        UserError: The file has changed so that it has no such vocabulary any more.
    """
    if isinstance(column.vocabulary, str):
        where = f"feature column {column.name!r}"
        return read_vocabulary(column.vocabulary, column.vocabulary_size, column.is_text, where)
    return list(column.vocabulary)

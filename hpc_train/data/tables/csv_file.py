"""CSV files as tables: plain ones are cut into blocks of records, gzipped ones are one block."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv

from hpc_train.data.ragged import first_invalid
from hpc_train.data.sources.arrow import texts_of_arrow
from hpc_train.data.sources.csv_header import BOM, NUMBER, header_cells
from hpc_train.data.sources.table import is_gzipped, open_unzipped
from hpc_train.data.tables.csv_cut import NONE, Cut, Piece, cut, inspect, record_starts
from hpc_train.data.tables.table_file import TableFile, Types, check_names
from hpc_train.data.tables.texts import trimmed
from hpc_train.errors import UserError
from hpc_train.files import open_to_read

PIECE_BYTES = 4 << 20
HEAD_BYTES = 1 << 20
"""The line of names is no longer."""
MAX_RECORD_BYTES = 64 << 20
SEPARATORS = ",;\t|"
"""Those that are tried, in this order."""
TAB = "\t"
NUMBERS = ("integer", "number")


@dataclass(frozen=True)
class CSVFile(TableFile):
    """A CSV file, its first record the names of its columns.

    Attributes:
        size: Bytes of the file. gzipped: Whether its content is compressed.
        separator: Between fields. missing_texts: What stands for a missing value.
        first: Where the first row begins, in what it holds.
        begins: Where each block begins, and the last one ends; None: not known yet, or gzipped.
    """

    kind = "csv"
    path: Path
    names: tuple[str, ...]
    size: int
    gzipped: bool
    separator: str
    missing_texts: tuple[str, ...]
    first: int
    begins: tuple[int, ...] | None = None

    @classmethod
    def open(cls, path: Path, separator: str | None, missing_texts: tuple[str, ...]) -> CSVFile:
        """Reads the names of its columns.

        Raises:
            UserError: They cannot be read, or are not names of columns.
        """
        with open_unzipped(path) as stream:
            head = stream.read(HEAD_BYTES)
        body = head.removeprefix(BOM)
        starts = record_starts(body)
        if not len(starts):
            raise UserError(f"{path}: is empty")
        end = int(starts[1]) if len(starts) > 1 else len(body)
        if len(starts) < 2 and len(head) == HEAD_BYTES:
            raise UserError(f"{path}: its first line has more than {HEAD_BYTES >> 20} MiB; is it CSV?")
        line = body[int(starts[0]) : end].rstrip(b"\r\n")
        separator = separator or _separator_of(path, line)
        names = tuple(header_cells(str(path), line, separator))
        names = tuple(name.strip() for name in names)
        if all(re.fullmatch(NUMBER, name) for name in names):
            raise UserError(f"{path}: the first line holds numbers and no column names; put a line with these first")
        check_names(path, names, "name each column in the file's first line")
        first = len(head) - len(body) + end
        return cls(path, names, path.stat().st_size, is_gzipped(path), separator, missing_texts, first)

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "path": str(self.path)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CSVFile:
        """The file that `to_json` has given."""
        tuples = {name: tuple(value[name]) for name in ("names", "missing_texts")}
        begins = None if value["begins"] is None else tuple(value["begins"])
        return cls(**{**value, **tuples, "path": Path(value["path"]), "begins": begins})

    @property
    def types(self) -> Types:  # type: ignore[override]
        return dict.fromkeys(self.names)

    @property
    def blocks(self) -> int:  # type: ignore[override]
        if self.gzipped:
            return 1
        assert self.begins is not None, "it is to be cut first"
        return len(self.begins) - 1

    @property
    def usual_separator(self) -> str:
        """What separates columns in files of such a name."""
        return TAB if ".tsv" in self.path.suffixes else ","

    @property
    def pieces(self) -> int:
        """How many pieces of it `piece` can look at; none where it is gzipped."""
        return 0 if self.gzipped else -(-self.size // PIECE_BYTES)

    def piece(self, number: int) -> Piece:
        """What is in one of its pieces."""
        start = max(0, number * PIECE_BYTES - 1)
        text = self._bytes(start, min(self.size, (number + 1) * PIECE_BYTES))
        before = text[0] if number else None
        if number == 0 and text.startswith(BOM):
            text = b"\n\n\n" + text[len(BOM) :]
        return inspect(text[1:] if number else text, before, ord(self.separator))

    def with_pieces(self, pieces: list[Piece]) -> CSVFile:
        """The same file, cut into blocks.

        Raises:
            UserError: A quote opens in the middle of a field, or none closes it.
        """
        found: Cut = cut(pieces, self.size, PIECE_BYTES, self.first)
        if found.stray is not None:
            self._refuse_stray(found.stray)
        whole = replace(self, begins=found.begins)
        if found.is_open:
            last = max(0, len(found.begins) - 2)
            starts = record_starts(whole._bytes(*found.begins[last:]))
            raise UserError(
                f"{self.path}: the record that begins in {whole.place(last, len(starts) - 1)} has a quote that is not "
                "closed; close it, or remove it"
            )
        return whole

    def _refuse_stray(self, place: int) -> NoReturn:
        raise UserError(
            f"{self.path}: {self._line_at(place)} has a quote within a field that does not begin with one; double it "
            'and quote the field, as in "5"" pipe"'
        )

    @property
    def _has_one_column(self) -> bool:
        """Whether an empty line is a row, whose value is missing."""
        return len(self.names) == 1

    def read(self, block: int, wanted: Types) -> Iterator[Any]:
        for text in self._texts(block):
            if self._has_one_column or text.strip(b"\r\n"):
                yield self._parsed(text, block, wanted)

    def _texts(self, block: int) -> Iterator[bytes]:
        """The records of a block, in pieces of whole ones."""
        if not self.gzipped:
            assert self.begins is not None
            begin, end = self.begins[block : block + 2]
            if end - begin > MAX_RECORD_BYTES:
                raise UserError(
                    f"{self.path}: {self._line_at(begin)} begins a record of more than {MAX_RECORD_BYTES >> 20} MiB; "
                    "is a quote not closed?"
                )
            yield self._bytes(begin, end)
            return
        try:
            with open_unzipped(self.path) as stream:
                stream.seek(self.first)
                rest, before, parity, place = b"", b"\n", 0, self.first
                while more := stream.read(PIECE_BYTES):
                    found = inspect(more, before[-1], ord(self.separator))
                    if (stray := found.strays[parity]) != NONE:
                        self._refuse_stray(place + stray)
                    parity, before, place = parity ^ found.quotes % 2, more, place + len(more)
                    rest += more
                    end = _last_end(rest)
                    if not end and len(rest) > MAX_RECORD_BYTES:
                        raise UserError(
                            f"{self.path}: has a record of more than {MAX_RECORD_BYTES >> 20} MiB; is a quote not "
                            "closed?"
                        )
                    if end:
                        yield rest[:end]
                        rest = rest[end:]
                if parity:
                    line = self._line_at(place - len(rest))
                    raise UserError(
                        f"{self.path}: from {line} on there is a quote that is not closed; close it, or remove it"
                    )
                if rest:
                    yield rest
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.path}: cannot be read: {error}") from None

    def _bytes(self, begin: int, end: int) -> bytes:
        try:
            with open_to_read(self.path, follow=True) as file:
                if os.fstat(file.fileno()).st_size != self.size:
                    raise UserError(f"{self.path}: has changed while it was read; try again once it is written")
                file.seek(begin)
                return file.read(end - begin)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror or error}") from None

    def _parsed(self, text: bytes, block: int, wanted: Types) -> Any:
        """The table of some records."""
        with suppress(pa.ArrowInvalid):
            kinds = {name: pa.float64() if kind in NUMBERS else pa.large_string() for name, kind in wanted.items()}
            return self._trimmed(self._table(text, block, kinds))
        with suppress(pa.ArrowInvalid):
            return self._trimmed(self._table(text, block, dict.fromkeys(wanted, pa.large_string())))
        table = self._table(text, block, dict.fromkeys(wanted, pa.large_binary()))
        for name in wanted:
            texts = texts_of_arrow(compute.fill_null(table.column(name), b""))
            if (row := first_invalid(texts.values, texts.lengths)) is not None:
                raise UserError(
                    f"{self.path}: {self._line_in(text, block, row)}: column {name!r} is not text in UTF-8; convert "
                    "the file, as iconv -f latin1 -t UTF-8 does"
                )
        raise UserError(f"{self.path}: what begins in {self._line_in(text, block, 0)} cannot be read as CSV")

    def _trimmed(self, table: Any) -> Any:
        """`table` with its texts without blanks around, null where one is missing."""
        missing = pa.array(self.missing_texts, pa.large_string())
        for number, field in enumerate(table.schema):
            if pa.types.is_large_string(field.type):
                texts = trimmed(table.column(number))
                gone = compute.is_in(texts, missing)
                table = table.set_column(
                    number, field.name, compute.if_else(gone, pa.scalar(None, pa.large_string()), texts)
                )
        return table

    def _table(self, text: bytes, block: int, kinds: Mapping[str, Any]) -> Any:
        """These columns of some records.

        Raises:
            UserError: A record has more or fewer fields than there are columns.
            pa.ArrowInvalid: A field is not of its column's type.
        """
        odd: list[csv.InvalidRow] = []

        def refuse(row: csv.InvalidRow) -> str:
            odd.append(row)
            return "error"

        try:
            return csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(column_names=self.names, block_size=len(text) + 1, use_threads=False),
                csv.ParseOptions(
                    delimiter=self.separator,
                    newlines_in_values=True,
                    ignore_empty_lines=not self._has_one_column,
                    invalid_row_handler=refuse,
                ),
                csv.ConvertOptions(
                    column_types=dict(kinds),
                    include_columns=list(kinds),
                    null_values=list(self.missing_texts),
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            if not odd:
                raise
            has = f"{odd[0].actual_columns} field" + ("s" if odd[0].actual_columns != 1 else "")
            raise UserError(
                f"{self.path}: {self._line_in(text, block, odd[0].number - 1)} has {has}, but there are "
                f"{len(self.names)} columns; mend it, and quote fields that have a {self.separator!r} in them"
            ) from None

    def place(self, block: int, row: int) -> str:
        for text in self._texts(block):
            starts = record_starts(text, self._has_one_column)
            if row < len(starts):
                return self._line_in(text, block, row)
            row -= len(starts)
        return "its last line"

    def _line_in(self, text: bytes, block: int, row: int) -> str:
        """The line of a record of `text`, which is a part of a block."""
        starts = record_starts(text, self._has_one_column)
        start = int(starts[min(row, len(starts) - 1)]) if len(starts) else 0
        if not self.gzipped:
            assert self.begins is not None
            return self._line_at(self.begins[block] + start)
        begin = self.first
        for before in self._texts(block):
            if before == text:
                break
            begin += len(before)
        return self._line_at(begin + start)

    def _line_at(self, place: int) -> str:
        """The line of a byte of what the file holds."""
        lines, left = 1, place
        with open_unzipped(self.path) as stream:
            while left and (text := stream.read(min(left, PIECE_BYTES))):
                lines += text.count(b"\n")
                left -= len(text)
        return f"line {lines:,}"


def _last_end(text: bytes) -> int:
    """Where the last whole record of `text`, which begins with one, ends; 0: there is none."""
    letters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(letters == ord('"'))
    breaks = np.flatnonzero(letters == ord("\n"))
    outside = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _separator_of(path: Path, line: bytes) -> str:
    """What separates the names of a first line."""
    if ".tsv" in path.suffixes:
        return TAB
    bare = re.sub(rb'"[^"]*"', b"", line)
    return next((each for each in SEPARATORS if each.encode() in bare), ",")

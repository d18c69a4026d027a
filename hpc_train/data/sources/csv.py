"""CSV files, plain or gzipped: numbers, and text where it is asked for, read in blocks of lines and parsed by pyarrow.

A column of whole numbers is int64, any other float64. Which it is shows in the first lines; a column that turns out
not to be whole after all comes as float64 from there on, and the spool makes it float64 from the start.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv

from hpc_train.data.ragged import TEXT
from hpc_train.data.sources.arrow import texts_of_arrow
from hpc_train.data.sources.csv_header import BOM, NUMBER, check_header, header_cells
from hpc_train.data.sources.recipe import Part, Target
from hpc_train.data.sources.table import Block, Field, Rows, open_unzipped
from hpc_train.errors import UserError

BLOCK_BYTES = 4 << 20
SAMPLE_BYTES = 64 << 10
MAX_LINE_BYTES = 64 << 20

_WHOLE = r"^\s*[+-]?\d+\s*$"
_TYPES = {"i8": pa.int64(), "u8": pa.uint64(), "f8": pa.float64(), TEXT.str: pa.binary()}
_KINDS = {"f": "f8", "S": TEXT.str}


class CSV(Part):
    """A CSV file (tab-separated where its name ends in .tsv).

    Args:
        header: Whether the first line names the columns; else they are c0, c1, …. None: it does, and must not look
            like a row.
        targets: The types asked for: a column that is to be of floats is read as such.

    Raises:
        UserError: No header, names given twice, no lines, lines of different lengths in the first ones.
    """

    def __init__(self, path: Path, header: bool | None, targets: Mapping[str, Target]) -> None:
        self.name, self._path, self._header = str(path), path, header is not False
        self._delimiter = "\t" if ".tsv" in path.suffixes else ","
        self._read_bytes, self._all_bytes = 0, path.stat().st_size
        with open_unzipped(path) as stream:
            first = next(self._lines(stream, SAMPLE_BYTES), b"")
        if not first.strip():
            raise UserError(f"{path}: is empty")
        top, _, rest = first.partition(b"\n")
        cells = header_cells(self.name, top.removesuffix(b"\r"), self._delimiter)
        if header is None:
            ways = "give --no-header if it is a row, or --header if these are the columns' names"
            check_header(self.name, cells, rest, self._delimiter, ways)
        self.names = cells if self._header else [f"c{i}" for i in range(len(cells))]
        twice = {name for name, times in Counter(self.names).items() if times > 1}
        if twice:
            way = "; give --no-header if the first line is a row" if self._header else ""
            raise UserError(f"{path}: two columns are named {min(twice)!r}{way}")
        self._kinds: dict[str, str] = {}
        self.refused = self._infer(rest if self._header else first, targets)
        self.fields: Mapping[str, Field] = {
            name: self._field(name, np.dtype(self._kinds[name])) for name in self.names if name not in self.refused
        }

    def _field(self, name: str, dtype: np.dtype) -> Field:
        return Field(name, dtype, (), True, self._text_bytes) if dtype == TEXT else Field(name, dtype)

    def share(self) -> float | None:
        return self._read_bytes / self._all_bytes

    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        assert start == 0, "rows that are not counted are read from the first"
        line = 1
        with open_unzipped(self._path) as stream:
            for block in self._lines(stream, BLOCK_BYTES):
                skip = line == 1 and self._header
                text = block[block.find(b"\n") + 1 :] if skip and b"\n" in block else b"" if skip else block
                if text.strip(b"\r\n"):
                    yield self._parse(text, names, line + skip)
                line += block.count(b"\n")
                self._read_bytes = getattr(stream, "fileobj", stream).tell()  # gzipped: of the file itself

    def _lines(self, stream: BinaryIO, size: int) -> Iterator[bytes]:
        """Blocks of whole lines, without the byte order mark that some programs put first."""
        try:
            first = True
            while block := stream.read(size) + (rest := stream.readline(MAX_LINE_BYTES + 1)):
                if len(rest) > MAX_LINE_BYTES:
                    raise UserError(f"{self.name}: has a line of more than {MAX_LINE_BYTES >> 20} MiB; is it CSV?")
                yield block.removeprefix(BOM) if first else block
                first = False
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.name}: cannot be read: {error}") from None

    def _infer(self, text: bytes, targets: Mapping[str, Target]) -> dict[str, str]:
        """Sets each column's kind from some lines; returns those that hold no numbers, and where that shows."""
        refused: dict[str, str] = {}
        self.texts: list[str] = []
        for name in self.names:
            wanted = targets[name].dtype if name in targets else np.dtype(np.int64)
            self._kinds[name] = _KINDS.get(wanted.kind, "u8" if wanted.name == "uint64" else "i8")
        self._text_bytes = max(1, len(text) // max(1, text.count(b"\n")) // len(self.names))
        if not text.strip(b"\r\n"):
            return refused
        table = self._table(text, dict.fromkeys(self.names, pa.binary()), 1 + self._header)
        for name in self.names:
            values = table.column(name)
            if self._kinds[name] == TEXT.str:
                continue
            if _first_unlike(values, _WHOLE) is not None:
                self._kinds[name] = "f8"
            if (row := _first_unlike(values, NUMBER)) is not None:
                refused[name] = f"line {_line_of(text, row, 1 + self._header)} has {_shown(values[row])}"
                if values[row].as_py().strip():
                    self.texts.append(name)
        return refused

    def _parse(self, text: bytes, names: Sequence[str], line: int) -> Block:
        """One block of lines, the first of which has number `line`."""
        kinds = {name: self._kinds[name] for name in names}
        might_be_hexadecimal = set(kinds.values()) != {"f8"} and (b"0x" in text or b"0X" in text)
        if not might_be_hexadecimal:  # which pyarrow takes for whole numbers
            with suppress(UserError):
                table = self._table(text, {name: _TYPES[kind] for name, kind in kinds.items()}, line)
                return {name: _values(table.column(name)) for name in names}
        table = self._table(text, dict.fromkeys(names, pa.binary()), line)
        numbers = [name for name in names if kinds[name] != TEXT.str]
        faults = [(row, name) for name in numbers if (row := _first_unlike(table.column(name), NUMBER)) is not None]
        if faults:
            row, name = min(faults)
            where = f"{self.name}: line {_line_of(text, row, line)}: column {name!r}"
            raise UserError(f"{where} has {_shown(table.column(name)[row])}, not a number")
        return {
            name: self._numbers(name, values, text, line) if name in numbers else texts_of_arrow(values)
            for name, values in ((name, table.column(name)) for name in names)
        }

    def _numbers(self, name: str, values: pa.ChunkedArray, text: bytes, line: int) -> np.ndarray:
        """The numbers that a column's cells in a block of lines hold; it becomes float64 where they are not whole."""
        if _first_unlike(values, _WHOLE) is not None:
            self._kinds[name] = "f8"
        kind = self._kinds[name]
        digits = compute.ascii_ltrim(compute.ascii_trim_whitespace(values.cast(pa.string())), "+")
        try:
            return np.asarray(digits.cast(_TYPES[kind]).to_numpy())
        except pa.ArrowInvalid:
            limits, cells = np.iinfo(np.dtype(kind)), digits.to_pylist()
            for row, cell in enumerate(cells):
                if not limits.min <= int(cell) <= limits.max:
                    raise UserError(
                        f"{self.name}: line {_line_of(text, row, line)}: column {name!r} has {cell}, which does not "
                        f"fit {np.dtype(kind)}; give --dtype {name}=uint64 or {name}=float64"
                    ) from None
            return np.array([int(cell) for cell in cells], kind)  # -0 as uint64

    def _table(self, text: bytes, types: Mapping[str, pa.DataType], line: int) -> pa.Table:
        """These columns of a block of lines, the first of which has number `line`.

        Raises:
            UserError: A line has more or fewer values than there are columns, or a value is not of its column's type.
        """
        other: list[csv.InvalidRow] = []

        def refuse(row: csv.InvalidRow) -> str:
            other.append(row)
            return "error"

        try:
            return csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(column_names=self.names, block_size=len(text) + 1, use_threads=False),
                self._format(refuse),
                csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[], check_utf8=False),
            )
        except pa.ArrowInvalid:
            if not other:
                last = line + text.count(b"\n")
                raise UserError(f"{self.name}: lines {line} to {last} cannot be read as CSV") from None
            found = other[0]
            raise UserError(
                f"{self.name}: line {_line_of(text, found.number - 1, line)} has {found.actual_columns} values, but "
                f"there are {len(self.names)} columns"
            ) from None

    def _format(self, refuse: Callable[[csv.InvalidRow], str] | None = None) -> csv.ParseOptions:
        return csv.ParseOptions(delimiter=self._delimiter, invalid_row_handler=refuse)


def _first_unlike(values: pa.ChunkedArray, pattern: str) -> int | None:
    """The first row whose cell (bytes) does not match `pattern` as a whole; None where all do."""
    row = compute.index(compute.match_substring_regex(values, pattern), False).as_py()
    return None if row < 0 else int(row)


def _values(column: pa.ChunkedArray) -> Rows:
    return texts_of_arrow(column) if pa.types.is_binary(column.type) else np.asarray(column.to_numpy())


def _line_of(text: bytes, row: int, line: int) -> int:
    """The number of the line that row `row` of a block is in, the first line of which has number `line`. Pure."""
    filled = [number for number, content in enumerate(text.split(b"\n"), line) if content.strip(b"\r")]
    return filled[min(row, len(filled) - 1)]


def _shown(value: pa.Scalar) -> str:
    cell = value.as_py().decode("utf-8", "replace")
    return f"the text {cell[:40]!r}" if cell.strip() else "no value"

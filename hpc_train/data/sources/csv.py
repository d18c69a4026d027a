"""CSV files, plain or gzipped: numbers only, read in blocks of lines by numpy's parser, or pyarrow's where it is there.

A column of whole numbers is int64, any other float64. Which it is shows in the first lines; a column that turns out
not to be whole after all comes as float64 from there on, and the spool makes it float64 from the start.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hpc_train.data.sources.recipe import Target
from hpc_train.data.sources.table import Block, Field
from hpc_train.errors import UserError

BLOCK_BYTES = 4 << 20
SAMPLE_BYTES = 64 << 10
_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf(?:inity)?)\s*", re.ASCII | re.IGNORECASE)
_QUOTE, _BOM = '"', b"\xef\xbb\xbf"


class CSV:
    """A CSV file (tab-separated where its name says .tsv): a `Part`.

    Args:
        header: Whether the first line names the columns; else they are c0, c1, ….
        targets: The types asked for: a column that is to be of floats is read as such.

    Raises:
        UserError: No header, names given twice, no lines, lines of different lengths in the first ones.
    """

    def __init__(self, path: Path, header: bool, targets: Mapping[str, Target]) -> None:
        self.name, self._path, self._header = str(path), path, header
        self._delimiter = "\t" if ".tsv" in path.suffixes else ","
        with open(path, "rb") as file:
            self._zipped = file.read(2) == b"\x1f\x8b"
        self._read_bytes, self._all_bytes = 0, path.stat().st_size
        with self._open() as stream:
            first = next(self._lines(stream, SAMPLE_BYTES), b"")
        lines = first.decode("latin-1").splitlines()
        if not first.strip():
            raise UserError(f"{path}: is empty")
        top = self._cells(self._decoded(first.splitlines()[0]))
        if header and all(_NUMBER.fullmatch(cell) for cell in top):
            raise UserError(f"{path}: the first line holds numbers and no column names; give --no-header if that is so")
        self.names: Sequence[str] = top if header else [f"c{i}" for i in range(len(top))]
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice:
            raise UserError(f"{path}: two columns are named {min(twice)!r}")
        self._kinds: dict[str, str] = {}
        self.refused: Mapping[str, str] = self._infer(lines[1:] if header else lines, targets)
        self.fields: Mapping[str, Field] = {
            name: Field(name, np.dtype(self._kinds[name])) for name in self.names if name not in self.refused
        }

    def rows_of(self, names: Sequence[str]) -> int | None:
        return None

    def random_of(self, names: Sequence[str]) -> bool:
        return False

    def share(self) -> float | None:
        return self._read_bytes / self._all_bytes

    def gather(self, names: Sequence[str], rows: np.ndarray) -> Block:
        raise NotImplementedError

    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        assert start == 0, "rows that are not counted are read from the first"
        line = 1
        with self._open() as stream:
            for block in self._lines(stream, BLOCK_BYTES):
                skip = line == 1 and self._header
                text = block[block.find(b"\n") + 1 :] if skip and b"\n" in block else b"" if skip else block
                if text.strip(b"\r\n"):
                    yield self._parse(text, names, line + skip)
                line += block.count(b"\n")
                self._read_bytes = self._position(stream)

    def _open(self) -> BinaryIO:
        return cast(BinaryIO, gzip.open(self._path, "rb") if self._zipped else open(self._path, "rb"))

    def _position(self, stream: Any) -> int:
        return int(stream.fileobj.tell() if self._zipped else stream.tell())

    def _lines(self, stream: BinaryIO, size: int) -> Iterator[bytes]:
        """Blocks of whole lines, without the byte order mark that some programs put first."""
        try:
            first = True
            while block := stream.read(size) + stream.readline():
                yield block.removeprefix(_BOM) if first else block
                first = False
        except (OSError, EOFError) as error:
            raise UserError(f"{self.name}: cannot be read: {error}") from None

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise UserError(f"{self.name}: its first line is not text in UTF-8") from None

    def _cells(self, line: str) -> list[str]:
        return next(csv.reader([line], delimiter=self._delimiter), [""])

    def _infer(self, lines: Sequence[str], targets: Mapping[str, Target]) -> dict[str, str]:
        """Sets each column's kind from `lines`; returns those that hold no numbers, and where that shows."""
        refused: dict[str, str] = {}
        for name in self.names:
            wanted = targets[name].dtype if name in targets else np.dtype(np.int64)
            self._kinds[name] = "f8" if wanted.kind == "f" else "u8" if wanted.name == "uint64" else "i8"
        for number, cells in self._rows(lines, 2 if self._header else 1):
            for name, cell in zip(self.names, cells, strict=True):
                if not _WHOLE.fullmatch(cell):
                    self._kinds[name] = "f8"
                    if name not in refused and not _NUMBER.fullmatch(cell):
                        refused[name] = f"line {number} has {_shown(cell)}"
        return refused

    def _rows(self, lines: Sequence[str], first: int) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of each line that is not empty; `first` is the first line's number."""
        reader = csv.reader(lines, delimiter=self._delimiter)
        try:
            for cells in reader:
                number = first + reader.line_num - 1
                if cells and len(cells) != len(self.names):
                    raise UserError(
                        f"{self.name}: line {number} has {len(cells)} values, but there are {len(self.names)} columns"
                    )
                if cells:
                    yield number, cells
        except csv.Error as error:
            raise UserError(f"{self.name}: line {first + reader.line_num}: {error}") from None

    def _parse(self, text: bytes, names: Sequence[str], line: int) -> Block:
        """One block of lines, the first of which has number `line`."""
        for _ in range(2):
            floats = any(self._kinds[name] == "f8" for name in names)
            rows = self._parse_with_arrow(text, names) if floats else None
            if rows is not None:
                return rows
            place = {name: i for i, name in enumerate(self.names)}
            dtype = np.dtype([(f"f{i}", self._kinds[name]) for i, name in enumerate(names)])
            try:
                self._check_lengths(text)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    records = np.loadtxt(
                        io.StringIO(text.decode("latin-1")),
                        dtype,
                        comments=None,
                        delimiter=self._delimiter,
                        quotechar=_QUOTE,
                        usecols=[place[name] for name in names],
                        ndmin=1,
                    )
                return {name: records[f"f{i}"] for i, name in enumerate(names)}
            except (ValueError, DeprecationWarning, OverflowError) as error:
                if not self._explain(text, names, line):
                    last = line + text.count(b"\n")
                    raise UserError(f"{self.name}: lines {line} to {last} cannot be read: {error}") from None
        raise UserError(f"{self.name}: lines from {line} on cannot be read")

    def _parse_with_arrow(self, text: bytes, names: Sequence[str]) -> Block | None:
        """The same by pyarrow, several times as fast for floats; None where it is not there, or finds a fault."""
        if b"x" in text or b"X" in text:  # pyarrow takes 0x10 for a number, numpy does not
            return None
        try:
            import pyarrow as pa  # type: ignore[import-untyped]
            import pyarrow.csv  # type: ignore[import-untyped]
        except ImportError:
            return None
        kinds = {"i8": pa.int64(), "u8": pa.uint64(), "f8": pa.float64()}
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(text),
                pyarrow.csv.ReadOptions(column_names=self.names, block_size=len(text) + 1),
                pyarrow.csv.ParseOptions(delimiter=self._delimiter),
                pyarrow.csv.ConvertOptions(
                    column_types={name: kinds[self._kinds[name]] for name in names},
                    include_columns=list(names),
                    null_values=[],
                    check_utf8=False,
                ),
            )
        except pa.ArrowException:
            return None
        if any(table.column(name).null_count for name in names):
            return None
        return {name: table.column(name).to_numpy() for name in names}

    def _check_lengths(self, text: bytes) -> None:
        """That each line has as many values as there are columns: numpy does not look past the last one wanted."""
        if _QUOTE.encode() in text or b"\n\n" in text or b"\n\r\n" in text or text[:1] in b"\r\n":
            return
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        if text.count(self._delimiter.encode()) != lines * (len(self.names) - 1):
            raise ValueError("lines of different lengths")

    def _explain(self, text: bytes, names: Sequence[str], line: int) -> bool:
        """Finds why a block cannot be parsed: columns that are not whole become float64, and True is returned.

        Raises:
            UserError: A line of another length or a value that is no number, with its line.
        """
        changed, limits = False, {"i8": np.iinfo(np.int64), "u8": np.iinfo(np.uint64)}
        lines = text.decode("latin-1").replace("\r\n", "\n").split("\n")
        for number, cells in self._rows(lines, line):
            row = dict(zip(self.names, cells, strict=True))
            for name in names:
                cell, kind = row[name], self._kinds[name]
                whole = _WHOLE.fullmatch(cell)
                if not whole and not _NUMBER.fullmatch(cell):
                    raise UserError(f"{self.name}: line {number}: column {name!r} has {_shown(cell)}, not a number")
                if kind == "f8":
                    continue
                if not whole:
                    self._kinds[name], changed = "f8", True
                elif not limits[kind].min <= int(cell) <= limits[kind].max:
                    raise UserError(
                        f"{self.name}: line {number}: column {name!r} has {cell}, which does not fit "
                        f"{np.dtype(kind)}; give --dtype {name}=uint64 or {name}=float64"
                    )
        return changed


def _shown(cell: str) -> str:
    return f"the text {cell[:40]!r}" if cell.strip() else "no value"


def is_csv_name(path: Path) -> bool:
    """Whether a file's name says that it is CSV."""
    name = path.name.removesuffix(".gz")
    return Path(name).suffix.lower() in (".csv", ".tsv")

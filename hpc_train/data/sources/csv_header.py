"""The first line of a CSV file: its columns' names. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from csv import Error as CSVError
from csv import reader as csv_reader

import pyarrow as pa
from pyarrow import csv

from hpc_train.arguments import shown
from hpc_train.errors import UserError

MAX_COLUMNS = 1 << 18
NUMBER = r"(?i)^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf(?:inity)?)\s*$"
"""A cell that is a number."""
BOM = b"\xef\xbb\xbf"
"""What some programs put before the first line."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def header_cells(name: str, line: bytes, delimiter: str) -> Sequence[str]:
    """What the first line of the file `name` holds.

    Raises:
        UserError: It is empty, not text in UTF-8, or cannot be read.
    """
    if line[:2] in UTF_16:
        raise UserError(f"{name}: is text in UTF-16; convert it to UTF-8, as iconv -f UTF-16 -t UTF-8 does")
    try:
        line.decode()
    except UnicodeDecodeError:
        raise UserError(f"{name}: its first line is not text in UTF-8") from None
    if not line:
        raise UserError(f"{name}: its first line is empty")
    if line.count(delimiter.encode()) >= MAX_COLUMNS:
        raise UserError(f"{name}: has more than {MAX_COLUMNS:,} columns in its first line")
    whole = csv.ReadOptions(block_size=len(line) + 2)
    options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        cells: Sequence[str] = csv.read_csv(pa.BufferReader(line + b"\n"), whole, options).column_names
    except pa.ArrowInvalid:
        raise UserError(f"{name}: its first line cannot be read; is there a quote too many?") from None
    return cells


def check_header(name: str, cells: Sequence[str], rest: bytes, delimiter: str, ways: str) -> None:
    """Refuses a first line that looks like a row: it has numbers, and they do not count the columns.

    Args:
        rest: What follows it. ways: what to do about it.
    """
    numbers = [cell for cell in cells if _is_number(cell)]
    if not numbers:
        return
    if len(numbers) == len(cells):
        raise UserError(f"{name}: the first line holds numbers and no column names; {ways}")
    try:
        below = next(csv_reader([rest.partition(b"\n")[0].decode()], delimiter=delimiter), [])
    except (UnicodeDecodeError, CSVError):
        below = []
    named = [c for cell, c in zip(cells, below, strict=False) if not _is_number(cell)]
    counting = [[str(i) for i in range(first, first + len(numbers))] for first in (0, 1)]
    if numbers in counting and all(_is_number(cell) for cell in named):
        return
    raise UserError(
        f"{name}: the first line has numbers among its names, such as {shown(numbers[0])}, so it may be a row; {ways}"
    )


def _is_number(cell: str) -> bool:
    return re.fullmatch(NUMBER, cell) is not None

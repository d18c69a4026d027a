"""Records of a CSV file are found whatever pieces it is looked at in."""

from __future__ import annotations

import csv
import io
import random

import pytest

from hpc_train.data.tables.csv_cut import Piece, cut, inspect, record_starts
from tests.support import examples

COMMA = ord(",")


def pieces_of(text: bytes, size: int) -> list[Piece]:
    found = []
    for start in range(0, len(text), size):
        before = text[start - 1] if start else None
        found.append(Piece.of_array(inspect(text[start : start + size], before, COMMA).to_array()))
    return found


@pytest.mark.random
def test_any_quoting_in_any_pieces() -> None:
    chance = random.Random(7)
    letters = ["a", '"', ",", "\n", "\r\n", "ü", "", " ", "12"]
    for _ in range(examples(300)):
        rows = [["".join(chance.choices(letters, k=chance.randrange(5))) for _ in range(3)] for _ in range(9)]
        stream = io.StringIO()
        csv.writer(stream, quoting=chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), lineterminator="\n").writerows(
            rows
        )
        text = stream.getvalue().encode()
        size = chance.randrange(1, 40)
        found = cut(pieces_of(text, size), len(text), size, 0)
        assert not found.is_open and found.stray is None
        assert found.begins[0] == 0 and found.begins[-1] == len(text)
        parts = [text[a:b] for a, b in zip(found.begins, found.begins[1:], strict=False)]
        read = [row for part in parts for row in csv.reader(io.StringIO(part.decode(), newline=""))]
        assert read == list(csv.reader(io.StringIO(text.decode(), newline=""))) == rows
        starts = record_starts(text)
        assert len(starts) == len(rows)
        for start, row in zip(starts, rows, strict=True):
            assert next(csv.reader(io.StringIO(text[start:].decode(), newline=""))) == row


def test_quotes_in_the_middle_of_fields_are_found() -> None:
    text = b'a,"b ""c"" d"\n5" pipe,x\n"y",z\n'
    for size in range(1, len(text)):
        assert cut(pieces_of(text, size), len(text), size, 0).stray == text.index(b'" pipe')


def test_an_open_quote() -> None:
    text = b'a,b\n"c,d\ne,f\n'
    for size in range(1, len(text)):
        found = cut(pieces_of(text, size), len(text), size, 4)
        assert found.is_open
        assert found.begins == (4, len(text))


def test_empty_lines_are_no_records_and_the_last_line_may_lack_its_break() -> None:
    assert record_starts(b"a,b\n\n\r\nc,d\r\n1,2").tolist() == [0, 7, 12]
    assert record_starts(b"").tolist() == []
    assert cut(pieces_of(b"n\n", 4), 2, 4, 2).begins == (2,)

"""Text of others', made fit to be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.text import LINES, LISTED, by_mistake, listed, visible
from tests.hostile.acting import ACTING


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("größe [red] \\x1b │ … 🙂", "größe [red] \\x1b │ … 🙂"),
        ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
        ("\x1b[2J\x9b2J\x1bc", "\\x1b[2J\\x9b2J\\x1bc"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\r\nb\tc\0\x7f", "a\\r\\nb\\tc\\x00\\x7f"),
        ("\u202eevil\u2066\u200f\u061c", "\\u202eevil\\u2066\\u200f\\u061c"),
        ("a\u2028b\u2029c\x85d", "a\\u2028b\\u2029c\\x85d"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_what_acts_on_a_terminal_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_what_stays() -> None:
    assert visible("a\n\tb\r", LINES) == "a\n\tb\\r"
    colours = "\x1b[1;31mred\x1b[0m\x1b[38:5:1m\x1b[m"
    assert visible(colours, colours=True) == colours
    assert visible("\x1b[31m\x1b[2J\x1b[31\x1b", colours=True) == "\x1b[31m\\x1b[2J\\x1b[31\\x1b"


@given(st.text(st.one_of(st.characters(), st.sampled_from(sorted("\x1b[]m;\x07\x9b\u202e\ud800\n")))))
def test_any_text(text: str) -> None:
    shown = visible(text)
    assert not ACTING.search(shown)
    assert visible(shown) == shown
    assert visible(text, LINES).split("\n") == [visible(line, "\t") for line in text.split("\n")]


@given(st.lists(st.text("abc", min_size=1), max_size=2 * LISTED))
def test_a_list_of_names_is_whole_or_says_how_many_are_left_out(names):
    shown = listed(names)
    if len(names) > LISTED:
        shown, _, rest = shown.rpartition(" and ")
        assert rest == f"{len(names) - LISTED} more"
    assert shown == (", ".join(names[:LISTED]) or "none")


def test_files_with_the_same_mistake_are_one_line() -> None:
    many = [(f"data/train-{n:05}.h5", "has no dataset 'y'") for n in range(80)]
    assert by_mistake([*many, ("data/odd.h5", "is not an HDF5 file")]) == [
        "80 files: has no dataset 'y': data/train-00000.h5, data/train-00001.h5, data/train-00002.h5, "
        "data/train-00003.h5, data/train-00004.h5 and 75 more",
        "data/odd.h5: is not an HDF5 file",
    ]
    assert by_mistake([("a", "x"), ("b", "x"), ("a", "z")]) == ["2 files: x: a, b", "a: z"]
    different = by_mistake((f"f{n}", f"has {n} rows") for n in range(80))
    assert len(different) == 11 and different[0] == "f0: has 0 rows"
    assert different[-1] == "70 more, each with another mistake"

"""Text of others', made fit to be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.text import LINES, LISTED, listed, visible
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

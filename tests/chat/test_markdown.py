"""Markdown on a terminal: the same however it is cut, and never more than the line is wide."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chat.markdown import Markdown
from penstock.chat.wrapped_text import WrappedText, columns_of

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def shown(text: str, columns: int = 80, cuts: tuple[int, ...] = ()) -> str:
    stream = io.StringIO()
    markdown = Markdown(WrappedText(stream, lambda: columns, styled=True))
    at = 0
    for cut in sorted(cuts):
        if at < cut < len(text):
            markdown.push(text[at:cut])
            at = cut
    markdown.push(text[at:])
    markdown.finish()
    return stream.getvalue()


def characters(shown: str) -> list[tuple[str, str]]:
    """Each character with its style."""
    found, style = [], ""
    for part in re.split(r"(\x1b\[[0-9;]*m)", shown):
        if part.startswith("\x1b"):
            style = part
        else:
            found += [(char, style) for char in part]
    return found


def named(text: str, columns: int = 80) -> str:
    """What is shown, with styles as words."""
    names = {"0": "", "1": "bold ", "2": "dim ", "3": "italic ", "36": "code "}
    found = re.sub(
        r"\x1b\[([0-9;]*)m([^\x1b]*)\x1b\[0m",
        lambda m: "<" + "".join(names[n] for n in m[1].split(";")) + m[2] + ">",
        shown(text, columns),
    )
    return found.removesuffix("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain words", "plain words"),
        ("a **bold** word", "a <bold bold> word"),
        ("an *odd* one, and _this_", "an <italic odd> one, and <italic this>"),
        ("***both***", "<bold italic both>"),
        ("**a *b* c**", "<bold a> <bold italic b> <bold c>"),
        ("use `x ** 2` here", "use <code x> <code **> <code 2> here"),
        ("``a ` b``", "<code a> <code `> <code b>"),
        ("x**2 + y**2 and 2 * 3 * 4", "x**2 + y**2 and 2 * 3 * 4"),
        ("snake_case_name and __init__ of", "snake_case_name and <bold init> of"),
        ("这是**粗体**字", "这是<bold 粗><bold 体>字"),
        ("never **closed", "never **closed"),
        ("a lone ` mark", "a lone ` mark"),
        (r"\*escaped\* \d", r"*escaped* \d"),
        ("# Title\ntext", "<bold Title>\ntext"),
        ("#hashtag", "#hashtag"),
        ("- one\n* two\n+ three", "• one\n• two\n• three"),
        ("1. one\n2) two", "1. one\n2) two"),
        ("-5 degrees\n--flag", "-5 degrees\n--flag"),
        ("**Note:** yes", "<bold Note:> yes"),
        ("> said", "<dim │ >said"),
        ("a\n---\nb", f"a\n<dim {'─' * 20}>\nb"),
        (
            "```py\nx = 1  # **no**\n\n    y\n```\nend",
            "<code x = 1  # **no**>\n\n<code     y>\nend",
        ),
        ("~~~\n```\n~~~", "<code ```>"),
        ("```\nopen to the end", "<code open to the end>"),
        ("a `` b ``` c", "a `` b ``` c"),
        ("| a | b |\n|---|---|", "| a | b |\n|---|---|"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("", ""),
    ],
)
def test_what_is_shown(text: str, expected: str) -> None:
    assert named(text) == expected


def test_lines_are_broken_between_words() -> None:
    text = "- the quick brown fox jumps over"
    assert shown(text, 16).splitlines() == ["• the quick", "  brown fox", "  jumps over"]
    assert shown("> a quote that goes on", 12).count("│") == 3
    assert shown("12345678 1234567 1", 8).splitlines() == ["12345678", "1234567", "1"]
    assert STYLE.sub("", shown("a **bold phrase** here", 9)).splitlines() == [
        "a bold",
        "phrase",
        "here",
    ]


def test_a_word_that_is_longer_than_the_line_is_left_to_the_terminal() -> None:
    assert shown("see https://example.org/a/long/path now", 10).splitlines() == [
        "see",
        "https://example.org/a/long/path",
        "now",
    ]


def test_code_is_not_broken() -> None:
    assert "x" * 30 in shown("```\n" + "x" * 30 + "\n```", 10)


def test_wide_characters_take_two_columns() -> None:
    lines = shown("水" * 10, 8).splitlines()
    assert lines == ["水" * 4, "水" * 4, "水" * 2]
    assert columns_of("e\u0301水") == 3


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b]0;title\x07" not in shown("\x1b]0;title\x07**b**")


MARKS = ["*", "**", "_", "`", "```", "~~~", "---", "# ", "- ", "1. ", "> ", "\\"]
PIECES = st.sampled_from([*MARKS, "word", "水", " ", "\t", "\n", "\n\n"])
MARKDOWN = st.lists(PIECES, max_size=30).map("".join)


@settings(deadline=None)
@given(MARKDOWN, st.lists(st.integers(0, 80), max_size=10).map(tuple), st.integers(4, 40))
def test_cuts_change_nothing(text: str, cuts: tuple[int, ...], columns: int) -> None:
    whole = characters(shown(text, columns))
    assert characters(shown(text, columns, cuts)) == whole
    assert characters(shown(text, columns, tuple(range(len(text))))) == whole


def fenced(text: str) -> bool:
    """Whether there may be a fence, whose own line is not shown."""
    return "```" in text or "~~~" in text


@settings(deadline=None)
@given(MARKDOWN)
def test_words_stay(text: str) -> None:
    """Marks may vanish, words never do."""
    assert STYLE.sub("", shown(text, 2000)).count("word") == text.count("word") or fenced(text)


def test_a_long_line_of_marks_takes_no_long_time() -> None:
    text = "*a " * 20_000
    assert STYLE.sub("", shown(text)).split() == text.split()

"""What ``penstock serve`` prints when it is ready."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from penstock.cli.announcement import Announcement
from penstock.cli.listen import addresses, bind

CHAT = Announcement(
    version="1.2.3",
    model="tiny",
    urls=("http://127.0.0.1:8000", "http://10.0.0.7:8000"),
    facts=("a/model: bfloat16 on cpu, context 2,048 tokens", "tool calls: none"),
    chats=True,
    prompt="Hello!",
    keys_needed=False,
    links=(("API", "/openapi.json"), ("metrics", "/metrics")),
)


def example(text: str) -> list[str]:
    """The words of the command, as a shell reads them."""
    command = text[text.index("  curl ") : text.index("\n\n  API")]
    return shlex.split(command.replace("\\\n", ""))


def test_where_and_how_to_ask() -> None:
    lines = CHAT.text(None).splitlines()
    assert lines[:4] == [
        "penstock 1.2.3 serves tiny at http://127.0.0.1:8000/v1",
        "  also at http://10.0.0.7:8000/v1",
        "  a/model: bfloat16 on cpu, context 2,048 tokens",
        "  tool calls: none",
    ]
    assert "  metrics  http://127.0.0.1:8000/metrics" in lines
    curl, url, *options, body = example(CHAT.text(None))
    assert (curl, url) == ("curl", "http://127.0.0.1:8000/v1/chat/completions")
    assert options == ["-H", "Content-Type: application/json", "-d"]
    assert json.loads(body)["messages"] == [{"role": "user", "content": "Hello!"}]


def test_completions_with_keys_over_https() -> None:
    changes = {"chats": False, "keys_needed": True, "urls": ("https://[::1]:8000",)}
    words = example(replace(CHAT, **changes).text(None))
    assert words[1] == "https://[::1]:8000/v1/completions"
    assert "Authorization: Bearer YOUR-KEY" in words
    assert "--insecure" in words
    assert json.loads(words[-1])["prompt"] == "Hello!"


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
@pytest.mark.parametrize("model", ["tiny", 'it\'s a "model"', "Modell für Öl"])
def test_a_terminal_of_any_width(columns: int, model: str) -> None:
    text = replace(CHAT, model=model).text(columns)
    words = example(text)
    assert json.loads(words[-1])["model"] == model
    assert words[:-1] == example(CHAT.text(None))[:-1]
    longest = max(map(len, text.splitlines()))
    assert longest <= max(columns, 90)  # a word, such as the body's messages, stays whole
    if columns == 80:
        assert longest <= 80


def test_the_addresses_of_a_listener() -> None:
    for host, expected in (("127.0.0.1", ["127.0.0.1"]), ("::1", ["[::1]"])):
        with bind(host, 0) as listener:
            assert addresses(listener) == expected
    with bind("0.0.0.0", 0) as listener:
        loopback, *others = addresses(listener)
        assert loopback == "127.0.0.1"
        assert len(others) <= 1
        assert not any(other.startswith("127.") or other == "0.0.0.0" for other in others)

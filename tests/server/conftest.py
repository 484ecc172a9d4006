"""Servers for these tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import byte_tokenizer
from support.browser import Browser, browser
from support.http_client import Server, running

TOOL_TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{{ c.id }}{% endfor %}{{ m.tool_call_id or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinking %}<think>\n{% endif %}{% endif %}"
)
"""A chat template of a model that is shown tools, calls as Hermes does, and may reason."""


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def server(tokenizer_folder: Path) -> Iterator[Server]:
    """One server for tests that leave it as it was; a step takes 1 ms."""
    with running(tokenizer_folder, 1) as server:
        yield server


@pytest.fixture(scope="session")
def slow_server(tokenizer_folder: Path) -> Iterator[Server]:
    """A second one for all, where a step takes 10 ms."""
    with running(tokenizer_folder, 10) as server:
        yield server


@pytest.fixture
def fresh_server(tokenizer_folder: Path) -> Iterator[Server]:
    """A server of its own for a test that harms it; a step takes 10 ms."""
    with running(tokenizer_folder, 10) as server:
        yield server


@pytest.fixture(scope="session")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose model takes tools; a step takes 1 ms."""
    folder = byte_tokenizer.write(tmp_path_factory.mktemp("tools"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = TOOL_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with running(folder, 1) as server:
        yield server


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def long_server(tokenizer_folder: Path) -> Iterator[Server]:
    """A server whose answers are long: a step takes 5 ms."""
    with running(tokenizer_folder, 5, max_model_len=20_000) as server:
        yield server


@pytest.fixture
def page(chrome: Browser, long_server: Server) -> Iterator[Browser]:
    """The page of that server, with nothing stored."""
    chrome.driver.get(f"{long_server.url}/page/icon.svg")
    chrome.driver.execute_script("localStorage.clear()")
    chrome.complaints()
    chrome.open(long_server.url)
    yield chrome
    assert chrome.complaints() == []

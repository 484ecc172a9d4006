"""The window of penalties that clients of llama-server and of Ollama expect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.needs import require_native, shared
from support.served import Served, serving
from support.waiting import PATIENCE_S

from penstock.sampling.defaults import SamplingDefaults
from penstock.server.last_tokens import looking_back
from penstock.server.openai.protocol import CompletionRequest

NONE = SamplingDefaults()


@pytest.mark.parametrize(
    ("fields", "defaults", "last"),
    [
        ({}, NONE, None),
        ({"repetition_penalty": 1.0, "presence_penalty": 0.0}, NONE, None),
        ({"repetition_penalty": 1.1}, NONE, 64),
        ({"presence_penalty": -0.5}, NONE, 64),
        ({"frequency_penalty": 0.5}, NONE, 64),
        ({"repetition_penalty": 1.1, "repeat_last_n": -1}, NONE, -1),
        ({"repetition_penalty": 1.1, "repeat_last_n": 0}, NONE, 0),
        ({}, SamplingDefaults(repetition_penalty=1.2), 64),
        ({"repetition_penalty": 1.0}, SamplingDefaults(repetition_penalty=1.2), None),
        ({"repetition_penalty": 1.1}, SamplingDefaults(repeat_last_n=7), None),
    ],
)
def test_where_nothing_is_said(
    fields: dict[str, Any], defaults: SamplingDefaults, last: int | None
) -> None:
    """What the makers recommend is taken later, with their other options."""
    asked = msgspec.convert({"model": "m", "prompt": "a", **fields}, CompletionRequest)
    assert looking_back(asked, defaults).repeat_last_n == last


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    require_native()
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(shared("models/stories260k"), folder)
    path = Path(folder / "tokenizer_config.json")
    settings = json.loads(path.read_text()) if path.exists() else {}
    settings["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    path.write_text(json.dumps(settings))
    with serving(str(folder), "--no-artifact", "--served-model-name", "stories") as served:
        yield served


@pytest.mark.slow
def test_answers_are_those_of_a_window(served: Served) -> None:
    prompt, count = "Once upon a time", 200
    http = httpx.Client(base_url=served.url.removesuffix("/v1"), timeout=PATIENCE_S)

    def plain(**fields: Any) -> str:
        asked = {"prompt": prompt, "max_tokens": count, "temperature": 0, **fields}
        text: str = http.post("/v1/completions", json=asked).json()["choices"][0]["text"]
        return text

    def of_llama(**fields: Any) -> str:
        asked = {"prompt": prompt, "n_predict": count, "temperature": 0, **fields}
        text: str = http.post("/completion", json=asked).json()["content"]
        return text

    def of_ollama(path: str, said: dict[str, Any], **options: Any) -> Any:
        options = {"num_predict": count, "temperature": 0, **options}
        asked = {"model": "stories", "stream": False, "options": options, **said}
        return http.post(path, json=asked).json()

    wide, narrow = plain(repetition_penalty=1.3), plain(repetition_penalty=1.3, repeat_last_n=64)
    assert wide != narrow
    assert of_llama(repeat_penalty=1.3) == narrow
    assert of_llama() == plain()
    raw = {"prompt": prompt, "raw": True}
    assert of_ollama("/api/generate", raw, repeat_penalty=1.3)["response"] == narrow
    chat = {"messages": [{"role": "user", "content": prompt}]}
    given = of_ollama("/api/chat", chat, repeat_penalty=1.3, repeat_last_n=64)
    assert of_ollama("/api/chat", chat, repeat_penalty=1.3)["message"] == given["message"]
    everywhere = of_ollama("/api/chat", chat, repeat_penalty=1.3, repeat_last_n=-1)
    assert everywhere["message"] != given["message"]

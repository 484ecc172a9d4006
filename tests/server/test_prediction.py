"""Answers that clients predict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_core import MAX_MODEL_LEN
from support.http_client import Server
from support.needs import require_native, shared
from support.served import Served, serving

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Say it"}]


def answer(server: Server, prediction: object, **fields: Any) -> Any:
    body = {"messages": MESSAGES, "max_tokens": 20, "prediction": prediction, **fields}
    return server.http.post(CHAT, json=body).json()


def content(text: object) -> dict[str, object]:
    return {"type": "content", "content": text}


def test_drafted_tokens_are_counted(server: Server) -> None:
    plain = answer(server, None)
    text = plain["choices"][0]["message"]["content"]
    assert "completion_tokens_details" not in plain["usage"]
    parts = [{"type": "text", "text": text[:8]}, {"type": "text", "text": "0123"}]
    for predicted in (f"{text[:8]}0123", parts):
        found = answer(server, content(predicted))
        assert found["choices"][0]["message"]["content"] == text
        assert found["usage"]["completion_tokens_details"] == {
            "accepted_prediction_tokens": 8,
            "rejected_prediction_tokens": 4,
        }


def test_of_a_stream_the_usage_tells(server: Server) -> None:
    stream = server.client().chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "Say it"}],
        prediction={"type": "content", "content": "<|im_end|>"},
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
    )
    usage = [part.usage for part in stream if part.usage is not None][-1]
    assert usage.completion_tokens_details is not None
    rejected = usage.completion_tokens_details.rejected_prediction_tokens
    assert rejected == len("<|im_end|>"), "the names of special tokens are text"


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"content": "a"}, "prediction"),
        ({"type": "diff", "content": "a"}, "prediction"),
        ({"type": "content"}, "prediction"),
        (content(3), "prediction.content"),
        (content([{"type": "image_url", "image_url": "x"}]), "prediction.content"),
        ({**content("a"), "weight": 2}, "prediction.weight"),
        (content("a" * (4 * MAX_MODEL_LEN)), "prediction.content"),
    ],
)
def test_bad_predictions_are_refused(server: Server, prediction: object, param: str) -> None:
    error = answer(server, prediction)["error"]
    assert error["param"].startswith(param)
    assert "prediction" in error["message"]


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
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_story_with_a_name_changed(served: Served, temperature: float) -> None:
    """The same text comes in less than a third of the steps."""
    client = served.client()

    def told(**fields: Any) -> Any:
        return client.chat.completions.create(
            model="stories",
            messages=[{"role": "user", "content": "Once upon a time"}],
            temperature=temperature,
            seed=7,
            max_tokens=200,
            **fields,
        )

    text = told().choices[0].message.content
    predicted = told(prediction=content(text.replace("Lily", "Anne").replace("ball", "box")))
    assert predicted.choices[0].message.content == text
    tokens, details = predicted.usage.completion_tokens, predicted.usage.completion_tokens_details
    assert details.rejected_prediction_tokens > 0
    assert tokens / (tokens - details.accepted_prediction_tokens) >= 3

"""Answers in messages for channels by the real engine, whose grammars leave the ends to the model.

The demo model knows nothing of channels: the last tokens of its vocabulary are their marks here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.served import Served, serving

import penstock

DEMO = Path(penstock.__file__).parent / "demo" / "model"
ENDS = ("<|return|>", "<|call|>")
MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", *ENDS)
TEMPLATE = (
    "{% for t in tools or [] %}# {{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}{# <|channel|> #}"
)
USER: Any = [{"role": "user", "content": "the weather"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]


def with_marks(folder: Path) -> Path:
    """The demo model, with a vocabulary that has the marks, two of which end a text."""
    shutil.copytree(DEMO, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    first = len(model["vocab"]) - len(MARKS)
    model["vocab"] = {text: id for text, id in model["vocab"].items() if id < first}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    added += [{**added[0], "id": first + i, "content": mark} for i, mark in enumerate(MARKS)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    ends = [0, *(first + MARKS.index(mark) for mark in ENDS)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = with_marks(tmp_path_factory.mktemp("channels") / "model")
    with serving(str(folder), "--served-model-name", "demo", "--threads", "1") as served:
        yield served


def chat(served: Served, **fields: Any) -> Any:
    asked = {"model": "demo", "messages": USER, "max_tokens": 120, **fields}
    return served.client().chat.completions.create(**asked)


def test_forced_calls(served: Served) -> None:
    called = 0
    for seed in range(4):
        (choice,) = chat(served, tools=TOOLS, tool_choice="required", seed=seed).choices
        if choice.finish_reason == "length":
            continue
        (call,) = choice.message.tool_calls
        assert set(json.loads(call.function.arguments)) == {"city", "days"}
        assert choice.finish_reason == "tool_calls"
        called += 1
    assert called > 0


def test_a_schema_binds_the_message_for_the_user(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answered = 0
    for seed in range(8):
        (choice,) = chat(served, response_format=form, seed=seed).choices
        if choice.finish_reason == "length":  # it thinks, and cannot end that
            assert not choice.message.content
            assert choice.message.reasoning_content
            continue
        assert set(json.loads(choice.message.content)) == {"city", "days"}
        answered += 1
    assert answered > 0


def test_free_text_has_no_marks(served: Served) -> None:
    chunks = [c.choices[0].delta for c in chat(served, stream=True, max_tokens=30)]
    assert "<|" not in "".join(delta.content or "" for delta in chunks)

"""A model that answers in messages for channels, as gpt-oss does, through every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support import byte_tokenizer
from support.client_bodies import IGNORED
from support.http_client import Server, running

SPECIAL = ("<s>", "</s>", "<|start|>", "<|message|>")
TEMPLATE = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}"
    "{% if builtin_tools %}browser{% endif %}<|end|>"
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% set last = namespace(name='') %}{% for m in messages %}"
    "{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}{% set last.name = m.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ last.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ last.name }} to=assistant<|channel|>"
    "commentary<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>"
    "{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""It shows the first call of a message alone, and no texts beside calls, as gpt-oss's does."""

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
HI = [{"role": "user", "content": "Hi"}]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
ARGUMENTS = '{"city": "Žilina"}'
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + ARGUMENTS
FINAL = "<|channel|>final<|message|>Rain."
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("channels")
    byte_tokenizer.write(folder, TEMPLATE, SPECIAL)
    with running(folder, 1, max_model_len=2000) as server:
        yield server


def ask(server: Server, say: str, **fields: Any) -> Any:
    extra = {"cache_salt": f"say {say}", **fields.pop("extra_body", {})}
    asked: dict[str, Any] = {"model": "fake", "messages": HI, **fields}
    return server.client().chat.completions.create(extra_body=extra, **asked)


def post(server: Server, path: str, say: str, **fields: Any) -> Any:
    answer = server.post(path, {"model": "fake", "cache_salt": f"say {say}", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_chats_whole_and_streamed(server: Server, choice: str) -> None:
    say = THOUGHT + PREAMBLE + CALL if choice != "none" else THOUGHT + FINAL
    asked = {"tools": TOOLS, "tool_choice": choice}
    choices = ask(server, say, **asked).choices[0]
    message = choices.message
    assert message.reasoning_content == "Hm."
    assert message.content == ("I look." if choice != "none" else "Rain.")
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
    assert calls == ([("get_weather", ARGUMENTS)] if choice != "none" else [])
    assert choices.finish_reason == ("tool_calls" if choice != "none" else "stop")
    chunks = [chunk.choices[0] for chunk in ask(server, say, stream=True, **asked)]
    thought = "".join(getattr(c.delta, "reasoning_content", None) or "" for c in chunks)
    assert thought == "Hm."
    assert "".join(c.delta.content or "" for c in chunks) == message.content
    told = [call.function.arguments for c in chunks for call in c.delta.tool_calls or []]
    assert "".join(told) == (ARGUMENTS if choice != "none" else "")
    assert choice == "none" or len(told) > 2  # as they are written


def test_a_chat_without_tools(server: Server) -> None:
    message = ask(server, THOUGHT + FINAL).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.", "Rain.")
    card = server.http.get("/v1/models").json()["data"][0]
    assert card["tool_style"] == "harmony"
    assert {"tools", "reasoning"} <= set(card["capabilities"])


def test_responses(server: Server) -> None:
    tool = {"type": "function", **TOOLS[0]["function"]}  # type: ignore[dict-item]
    answer = post(server, "/v1/responses", THOUGHT + CALL, input="Hi", tools=[tool])
    assert [item["type"] for item in answer["output"]] == ["reasoning", "function_call"]
    call = answer["output"][1]
    assert (call["name"], call["arguments"]) == ("get_weather", ARGUMENTS)
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain"}
    history = [{"role": "user", "content": "Hi"}, *answer["output"], result]
    answer = post(server, "/v1/responses", FINAL, input=history, tools=[tool])
    assert answer["output"][-1]["content"][0]["text"] == "Rain."


def test_messages_of_anthropic(server: Server) -> None:
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    asked = {"messages": HI, "max_tokens": 600, "tools": [tool]}
    answer = post(server, "/v1/messages", THOUGHT + PREAMBLE + CALL, **asked)
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["content"][2]["input"] == json.loads(ARGUMENTS)
    assert answer["stop_reason"] == "tool_use"
    result = {
        "type": "tool_result",
        "tool_use_id": answer["content"][2]["id"],
        "content": "Rain",
    }
    asked["messages"] = [
        *HI,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]
    answer = post(server, "/v1/messages", FINAL, **asked)
    assert answer["content"][-1]["text"] == "Rain."


def test_chats_of_ollama(server: Server) -> None:
    asked = {"messages": HI, "tools": TOOLS, "stream": False}
    message = post(server, "/api/chat", THOUGHT + CALL, **asked)["message"]
    assert message["thinking"] == "Hm."
    assert message["tool_calls"][0]["function"]["arguments"] == json.loads(ARGUMENTS)
    history = [*HI, message, {"role": "tool", "tool_name": "get_weather", "content": "Rain"}]
    asked["messages"] = history
    assert post(server, "/api/chat", FINAL, **asked)["message"]["content"] == "Rain."


def test_what_the_template_is_told_of_calls(server: Server) -> None:
    calls = [
        {
            "id": f"c{i}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Brno"}'},
        }
        for i in range(2)
    ]
    said = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."}
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": f"R{i}"} for i in range(2)]
    history = [*HI, {**said, "tool_calls": calls}, *reversed(results)]
    answer = server.post("/tokenize", {"model": "fake", "messages": history})
    tokens = answer.json()["tokens"]
    text = server.post("/detokenize", {"model": "fake", "tokens": tokens}).json()["prompt"]
    call = (
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        '{"city": "Brno"}<|call|><|start|>functions.get_weather to=assistant<|channel|>commentary'
        "<|message|>"
    )
    assert text == (
        "<|start|>system<|message|>Reasoning: medium<|end|><|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        f"{call}R0<|end|>{call}R1<|end|><|start|>assistant"
    )


@pytest.mark.parametrize(
    ("effort", "shown", "named"),
    [
        ("low", "low", ""),
        ("high", "high", ""),
        ("none", "low", "reasoning_effort"),
        ("minimal", "low", "reasoning_effort"),
        ("max", "high", "reasoning_effort"),
    ],
)
def test_degrees_of_effort(server: Server, effort: str, shown: str, named: str) -> None:
    asked = {"model": "fake", "messages": HI, "max_tokens": 1, "reasoning_effort": effort}
    answer = server.post("/v1/chat/completions", asked)
    assert answer.headers.get(IGNORED, "") == named
    medium = server.post("/v1/chat/completions", {**asked, "reasoning_effort": "medium"}).json()
    more = answer.json()["usage"]["prompt_tokens"] - medium["usage"]["prompt_tokens"]
    assert more == len(shown) - len("medium")


def test_tools_that_the_server_would_have_to_run_are_refused(server: Server) -> None:
    options = {"chat_template_kwargs": {"builtin_tools": ["browser"]}}
    with pytest.raises(openai.BadRequestError, match=r"builtin_tools: .* functions"):
        ask(server, FINAL, extra_body=options)
    say = "<|channel|>analysis to=browser.search code<|message|>{}"
    assert ask(server, say, tools=TOOLS).choices[0].message.reasoning_content == say


def test_an_answer_that_goes_on(server: Server) -> None:
    history = [*HI, {"role": "assistant", "content": "It is"}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    message = ask(server, " rain.", messages=history, extra_body=options).choices[0].message
    assert message.content == " rain."

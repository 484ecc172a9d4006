"""Ollama's endpoints with its own client, and that they say what OpenAI's say."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest
from support.http_client import Server

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get_time"}},
]
HI: list[Any] = [{"role": "user", "content": "Hi"}]


def client_of(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


def chat_text(server: Server, messages: list[Any], count: int) -> str:
    answer = server.client().chat.completions.create(
        model="fake", messages=messages, max_tokens=count
    )
    text = answer.choices[0].message.content
    assert text is not None
    return text


def test_a_chat(server: Server) -> None:
    answer = client_of(server).chat("fake", HI, options={"num_predict": 12})
    assert answer.message.role == "assistant"
    assert answer.message.content == chat_text(server, HI, 12)
    assert (answer.done, answer.done_reason) == (True, "length")
    assert answer.eval_count == 12
    assert answer.prompt_eval_count
    assert answer.total_duration
    assert answer.total_duration >= (answer.prompt_eval_duration or 0) > 0


def test_a_prompt_is_a_chat_of_one_message(server: Server) -> None:
    answer = client_of(server).generate(
        "fake:latest", "Hi", system="Be brief.", options={"num_predict": 9}
    )
    expected = chat_text(server, [{"role": "system", "content": "Be brief."}, *HI], 9)
    assert answer.response == expected
    assert answer.context is not None
    assert len(answer.context) == (answer.prompt_eval_count or 0) + 9


def test_a_raw_prompt_is_continued(server: Server) -> None:
    answer = client_of(server).generate("fake", "Hi", raw=True, options={"num_predict": 9})
    expected = server.client().completions.create(model="fake", prompt="Hi", max_tokens=9)
    assert answer.response == expected.choices[0].text


@pytest.mark.parametrize("raw", [False, True])
def test_a_stream_is_the_answer(server: Server, raw: bool) -> None:
    client, options = client_of(server), {"num_predict": 20}
    whole = client.generate("fake", "Hi", raw=raw, options=options)
    lines = list(client.generate("fake", "Hi", raw=raw, options=options, stream=True))
    assert len(lines) > 2
    assert "".join(line.response or "" for line in lines) == whole.response
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].eval_count == whole.eval_count
    assert lines[-1].context == whole.context
    assert {line.done_reason for line in lines[:-1]} == {None}


def test_an_answer_goes_on_to_the_end_of_the_context(server: Server) -> None:
    """That is so without num_predict, and with a negative one."""
    for options in ({}, {"num_predict": -1}):
        answer = client_of(server).generate("fake", "Hi", raw=True, options=options)
        assert (answer.prompt_eval_count or 0) + (answer.eval_count or 0) == 512


def test_streams_are_lines(server: Server) -> None:
    """A body without ``stream`` asks for one."""
    body = {"model": "fake", "messages": HI, "options": {"num_predict": 3}}
    answer = server.post("/api/chat", body)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert all(line["message"]["role"] == "assistant" for line in lines)


def test_a_stop(server: Server) -> None:
    text = chat_text(server, HI, 40)
    stop = text[20:23]
    answer = client_of(server).chat("fake", HI, options={"num_predict": 40, "stop": [stop]})
    assert answer.message.content == text[: text.index(stop)]
    assert answer.done_reason == "stop"


def test_logprobs(server: Server) -> None:
    answer = client_of(server).chat(
        "fake", HI, options={"num_predict": 4}, logprobs=True, top_logprobs=2
    )
    expected = server.client().chat.completions.create(
        model="fake", messages=HI, max_tokens=4, logprobs=True, top_logprobs=2
    )
    assert expected.choices[0].logprobs is not None
    assert expected.choices[0].logprobs.content is not None
    assert answer.logprobs is not None
    assert [(each.token, each.logprob) for each in answer.logprobs] == [
        (each.token, each.logprob) for each in expected.choices[0].logprobs.content
    ]
    assert {len(each.top_logprobs or []) for each in answer.logprobs} == {2}


def test_nothing_asked_for_loads_the_model(server: Server) -> None:
    client = client_of(server)
    assert client.generate("fake").done_reason == "load"
    assert client.chat("fake", []).done_reason == "load"
    assert [line.done_reason for line in client.generate("fake", stream=True)] == ["load"]


@pytest.mark.parametrize(
    ("say", "thinking", "content", "calls"),
    [
        (
            f"<think>Hm.</think>Well. {CALL}\n{TIME}",
            "Hm.",
            "Well.",
            [("get_weather", {"city": "Žilina"}), ("get_time", {})],
        ),
        (CALL, None, "", [("get_weather", {"city": "Žilina"})]),
        ("<think>Hm.</think>", "Hm.", "", []),
    ],
)
def test_calls_and_reasoning_whole_and_streamed(
    tool_server: Server, say: str, thinking: str | None, content: str, calls: list[Any]
) -> None:
    body = {"messages": HI, "tools": TOOLS, "cache_salt": f"say {say}"}
    body["options"] = {"num_predict": 180}
    whole = tool_server.post("/api/chat", {**body, "stream": False}).json()
    lines = [json.loads(line) for line in tool_server.post("/api/chat", body).text.splitlines()]
    for parts in ([whole], lines):
        messages = [part["message"] for part in parts]
        made = [call for message in messages for call in message.get("tool_calls", [])]
        assert [(c["function"]["name"], c["function"]["arguments"]) for c in made] == calls
        assert "".join(message["content"] for message in messages) == content
        assert "".join(m.get("thinking", "") for m in messages) == (thinking or "")


def test_results_belong_to_calls(tool_server: Server) -> None:
    """Calls get ids, and results those of the calls that they answer."""
    call = {"function": {"name": "get_weather", "arguments": {"city": "Brno"}}}
    other = {"function": {"name": "get_time", "arguments": {}}}
    said: list[Any] = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [call, other]},
        {"role": "tool", "content": "Noon.", "tool_name": "get_time"},
        {"role": "tool", "content": "Rain.", "tool_name": "get_weather"},
    ]
    body = {"model": "fake", "messages": said, "tools": TOOLS, "options": {"num_predict": 1}}
    ours = tool_server.post("/api/chat", {**body, "stream": False})
    assert ours.status_code == 200, ours.text

    def made(number: int, name: str, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": f"call{number:05d}", "type": "function", "function": function}

    same = [
        *HI,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [made(0, "get_weather", '{"city":"Brno"}'), made(1, "get_time", "{}")],
        },
        {"role": "tool", "content": "Noon.", "tool_call_id": "call00001", "name": "get_time"},
        {"role": "tool", "content": "Rain.", "tool_call_id": "call00000", "name": "get_weather"},
    ]
    asked = {"model": "fake", "messages": same, "tools": TOOLS, "max_tokens": 1}
    theirs = tool_server.post("/v1/chat/completions", asked).json()
    assert ours.json()["prompt_eval_count"] == theirs["usage"]["prompt_tokens"]
    assert ours.json()["message"]["content"] == theirs["choices"][0]["message"]["content"]


def test_embeddings(server: Server) -> None:
    client = client_of(server)
    expected = server.client().embeddings.create(
        model="fake", input=["a", "bc"], encoding_format="float"
    )
    answer = client.embed("fake", ["a", "bc"])
    assert [list(each) for each in answer.embeddings] == [each.embedding for each in expected.data]
    assert answer.prompt_eval_count == expected.usage.prompt_tokens
    assert list(client.embeddings("fake", "a").embedding) == expected.data[0].embedding


def test_the_model_is_told_of(tool_server: Server) -> None:
    client = client_of(tool_server)
    (model,) = client.list().models
    assert model.model == "fake"
    (loaded,) = client.ps().models
    assert (loaded.model, loaded.context_length) == ("fake", 512)
    assert loaded.digest == model.digest
    shown = client.show("fake")
    assert shown.template
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert tool_server.http.get("/api/version").json()["version"]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("generate", {"prompt": "a", "suffix": "b"}, "cannot fill in"),
        ("generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "'template' is not supported"),
        ("generate", {"prompt": "a", "images": ["aGk="]}, "'images' is not supported"),
        ("generate", {"prompt": "a", "context": [1]}, "'context' is not supported"),
        ("generate", {"prompt": "a", "raw": True, "system": "b"}, "system: a raw prompt"),
        ("generate", {"prompt": "a", "options": {"mirostat": 2}}, "'options.mirostat' is not"),
        ("generate", {"prompt": "a", "options": {"temprature": 1}}, "did you mean 'temperature'"),
        (
            "chat",
            {"messages": HI, "options": {"repeat_penalty": 1.1, "repeat_last_n": -2}},
            "repeat_last_n must be at least -1",
        ),
        ("chat", {"messages": HI, "options": {"num_predict": 600}}, "num_predict"),
        # Nothing is asked for, but for the model to be loaded.
        ("generate", {"options": {"temperature": -1}}, "temperature must be"),
        ("chat", {"messages": [], "options": {"top_p": 2}}, "top_p must be"),
        ("chat", {"messages": [{"role": "robot"}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": "user", "thinking": "a"}]}, "messages[0].thinking"),
        ("chat", {"messages": HI, "format": "xml"}, "format"),
        ("chat", {"messages": HI, "format": {"type": "robot"}}, "format"),
        ("embed", {"input": []}, "input"),
        ("show", {"model": "other"}, "'other' does not exist here"),
        ("generate", {"model": "other", "prompt": "a"}, "'other' does not exist here"),
    ],
)
def test_what_is_refused(server: Server, path: str, fields: dict[str, Any], words: str) -> None:
    answer = server.post(f"/api/{path}", {"model": "fake", **fields})
    assert answer.status_code in (400, 404), answer.text
    assert words in answer.json()["error"]


def test_options_that_change_no_answer_are_named(server: Server) -> None:
    body = {
        "model": "fake",
        "messages": HI,
        "keep_alive": "5m",
        "options": {"num_ctx": 8192, "num_predict": 2, "mirostat": 0, "num_thread": 4},
    }
    named = server.post("/api/chat", body).headers["x-penstock-ignored"]
    assert named.split(", ") == ["keep_alive", "options.num_ctx", "options.num_thread"]


def test_the_client_raises_what_it_is_for(server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="does not exist here") as raised:
        client_of(server).chat("other", HI)
    assert raised.value.status_code == 404


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "application/json"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat", {"messages": HI}),
        ("generate", {"prompt": "Hi"}),
        ("embed", {"input": "Hi"}),
        ("embeddings", {"prompt": "Hi"}),
        ("show", {}),
    ],
)
def test_a_body_need_not_say_what_it_is(
    server: Server, path: str, fields: dict[str, Any], kind: str | None
) -> None:
    """Some libraries send no type, and curl that of a form."""
    options = {"options": {"num_predict": 1}} if path in ("chat", "generate") else {}
    body = json.dumps({"model": "fake", **fields, **options}).encode()
    headers = {} if kind is None else {"content-type": kind}
    url = f"/api/{path}"
    assert server.http.post(url, content=body, headers=headers).status_code == 200
    foreign = {**headers, "origin": "https://evil.example"}
    assert server.http.post(url, content=body, headers=foreign).status_code == 403
    text = server.http.post(url, content=body, headers={"content-type": "text/plain"})
    assert text.status_code == 415


def test_errors_have_a_code(server: Server) -> None:
    answer = server.post("/api/chat", {"model": "other", "messages": HI})
    assert answer.json()["code"] == "model_not_found"

"""Structured output and forced calls with the real engine and OpenAI's own client.

The demo model knows Python and nothing of JSON or tools: what it says is nonsense, and valid.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pydantic
import pytest
from support.served import Served, serving

import penstock

DEMO = Path(penstock.__file__).parent / "demo" / "model"
TEMPLATE = (
    "{{ bos_token }}{% for t in tools or [] %}# {{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}# {{ m.content }}\n{% endfor %}"
    "{% if thinking %}<think>\n{% endif %}{# <tool_call> as Hermes; </think> #}"
)
USER: Any = [{"role": "user", "content": "the weather"}]


class Closed(pydantic.BaseModel, extra="forbid"):
    """So that a text of it is of bounded length."""


class Person(Closed):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=150)
    mood: Literal["good", "bad"]


class get_weather(Closed):
    """Its name is the function's."""

    city: str = pydantic.Field(max_length=8)
    days: int = pydantic.Field(ge=1, le=9)


class get_time(Closed):
    zone: Literal["UTC", "CET"]


TOOLS: list[Any] = [openai.pydantic_function_tool(each) for each in (get_weather, get_time)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, with a template that knows tools and reasoning."""
    folder = shutil.copytree(DEMO, tmp_path_factory.mktemp("demo") / "model")
    config = json.loads((DEMO / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    words = ["--served-model-name", "demo", "--threads", "1", "--reasoning-parser", "none"]
    with serving(str(folder), *words) as served:
        yield served


def chat(served: Served, **fields: Any) -> Any:
    asked = {"model": "demo", "messages": USER, "max_tokens": 200, "seed": 1, **fields}
    return served.client().chat.completions.create(**asked)


def test_a_parsed_message(served: Served) -> None:
    for seed in range(3):
        answer = served.client().chat.completions.parse(
            model="demo", messages=USER, response_format=Person, max_tokens=200, seed=seed
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Person)


def test_a_parsed_message_in_a_stream(served: Served) -> None:
    with served.client().chat.completions.stream(
        model="demo", messages=USER, response_format=Person, max_tokens=200, seed=1
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    whole = served.client().chat.completions.parse(
        model="demo", messages=USER, response_format=Person, max_tokens=200, seed=1
    )
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed


def test_a_required_call(served: Served) -> None:
    for name, choice in (
        (None, "required"),
        ("get_weather", {"type": "function", "function": {"name": "get_weather"}}),
        ("get_time", {"type": "function", "function": {"name": "get_time"}}),
    ):
        answer = served.client().chat.completions.parse(
            model="demo",
            messages=USER,
            tools=TOOLS,
            tool_choice=choice,  # type: ignore[arg-type]
            parallel_tool_calls=False,
            max_tokens=300,
            n=4,
            seed=5,
        )
        for each in answer.choices:
            assert each.finish_reason == "tool_calls"
            assert each.message.content is None
            assert each.message.tool_calls is not None
            (call,) = each.message.tool_calls
            assert isinstance(call.function.parsed_arguments, get_weather | get_time)
            assert name in (None, call.function.name)


def test_required_calls_in_a_stream(served: Served) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "temperature": 0}
    whole = chat(served, **fields).choices[0]
    calls: list[list[str]] = []
    reason = None
    for chunk in chat(served, **fields, stream=True):
        (choice,) = chunk.choices
        reason = choice.finish_reason or reason
        for delta in choice.delta.tool_calls or []:
            if delta.id is not None:
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments
    assert reason == whole.finish_reason
    reported = [[each.function.name, each.function.arguments] for each in whole.message.tool_calls]
    assert calls[: len(reported)] == reported
    models = {"get_weather": get_weather, "get_time": get_time}
    for name, arguments in reported:
        models[name].model_validate_json(arguments)


def test_strict_functions_leave_text_free(served: Served) -> None:
    strict = chat(served, tools=TOOLS, max_tokens=40, temperature=0).choices[0]
    assert strict.finish_reason in ("length", "stop")
    assert strict.message.content


def test_completions(served: Served) -> None:
    def complete(**guided: Any) -> str:
        answer = served.client().completions.create(
            model="demo", prompt="x = ", max_tokens=120, seed=3, extra_body=guided
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].text

    assert complete(guided_choice=["yes", "no/ž"]) in ("yes", "no/ž")
    assert re.fullmatch(r"[a-f]{3}/\d{2}", complete(guided_regex=r"[a-f]{3}/[0-9]{2}"))
    assert re.fullmatch(r"(ab){1,4}!", complete(guided_grammar='start: "ab"~1..4 "!"'))
    Person.model_validate_json(complete(guided_json=Person.model_json_schema()))
    text = complete(structured_outputs={"json": json.dumps(get_time.model_json_schema())})
    get_time.model_validate_json(text)


def test_any_object(served: Served) -> None:
    answer = chat(served, response_format={"type": "json_object"}, n=8, max_tokens=150)
    texts = [each.message.content for each in answer.choices if each.finish_reason == "stop"]
    assert texts
    assert all(isinstance(json.loads(text), dict) for text in texts)


def test_responses(served: Served) -> None:
    client = served.client()
    answer = client.responses.parse(
        model="demo", input="a person", text_format=Person, max_output_tokens=200
    )
    assert isinstance(answer.output_parsed, Person)
    tools: Any = [
        {"type": "function", "strict": True, "name": "get_time"}
        | {"parameters": get_time.model_json_schema()}
    ]
    fields: Any = {"model": "demo", "input": "the time", "tools": tools, "temperature": 0}
    fields |= {"tool_choice": {"type": "function", "name": "get_time"}}
    fields |= {"parallel_tool_calls": False, "max_output_tokens": 200}
    (call,) = client.responses.create(**fields).output
    assert call.type == "function_call"
    get_time.model_validate_json(call.arguments)
    final = list(client.responses.create(**fields, stream=True))[-1].response
    assert [item.arguments for item in final.output] == [call.arguments]


def test_neighbours_do_not_matter(served: Served) -> None:
    """A bound answer is the same alone and among others, and so is a free one."""
    asked: list[dict[str, Any]] = [
        {"response_format": {"type": "json_object"}},
        {"tools": TOOLS, "tool_choice": "required"},
        {},
        {"extra_body": {"guided_regex": "[a-z]{4,30}"}},
        {"temperature": 0},
    ]

    async def ask(client: openai.AsyncOpenAI, fields: dict[str, Any]) -> Any:
        stream = await client.chat.completions.create(
            model="demo", messages=USER, max_tokens=60, seed=7, stream=True, **fields
        )
        # Apart: on a busy machine a chunk may have the end of a call and what is behind it.
        texts: list[str] = []
        arguments: list[str] = []
        async for chunk in stream:
            delta = chunk.choices[0].delta
            texts.append(delta.content or "")
            arguments += [call.function.arguments for call in delta.tool_calls or []]
        return "".join(texts), "".join(arguments)

    async def main() -> None:
        async with served.async_client() as client:
            alone = [await ask(client, fields) for fields in asked]
            together = await asyncio.gather(*(ask(client, fields) for fields in asked * 4))
        assert together == alone * 4

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("guided", "words"),
    [
        ({"guided_grammar": "start: <|nowhere|>"}, "special token"),
        ({"guided_regex": r"[^\s\S]"}, "cannot be used"),
        ({"guided_json": {"$ref": "#"}}, "cannot be used"),
    ],
    ids=["no such token", "no text", "endless"],
)
def test_what_only_the_engine_finds(
    served: Served, guided: dict[str, Any], words: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        served.client().completions.create(
            model="demo", prompt="a", max_tokens=5, extra_body=guided, stream=stream
        )
    assert caught.value.param == next(iter(guided))
    assert words in caught.value.message


@pytest.mark.slow
def test_reasoning_comes_first_and_is_free(folder: Path) -> None:
    with serving(str(folder), "--served-model-name", "demo", "--threads", "1") as served:
        # A line that the model has seen often it writes again: here one that ends reasoning.
        lines: Any = [{"role": "user", "content": "hm </think>"}] * 8
        fields: dict[str, Any] = {"messages": lines, "max_tokens": 200, "temperature": 0}
        fields["extra_body"] = {"chat_template_kwargs": {"thinking": True}}
        parsed = served.client().chat.completions.parse(
            model="demo", response_format=Person, **fields
        )
        message: Any = parsed.choices[0].message
        assert isinstance(message.parsed, Person)
        assert message.reasoning_content == "# hm"
        fields |= {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        message = chat(served, **fields).choices[0].message
        (call,) = message.tool_calls
        assert message.reasoning_content == "# hm"
        assert message.content is None
        models = {"get_weather": get_weather, "get_time": get_time}
        models[call.function.name].model_validate_json(call.function.arguments)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_costs_too_much_is_the_requests_fault(served: Served, stream: bool) -> None:
    """It begins well, so that a stream has its status before."""

    def ask(**fields: Any) -> Any:
        grammar = "start: e\ne: e e | /[a-z ]/"
        return served.client().completions.create(
            model="demo",
            prompt="a",
            max_tokens=400,
            # The model would end at any moment: all of it is a text by then.
            extra_body={"guided_grammar": grammar, "min_tokens": 400},
            **fields,
        )

    with pytest.raises(openai.APIError) as caught:
        for _ in ask(stream=True, temperature=1.5) if stream else [ask(temperature=1.5)]:
            pass
    assert "less ambiguous" in caught.value.message
    assert caught.value.param == "guided_grammar"
    assert caught.value.type == "invalid_request_error"
    if not stream:
        assert isinstance(caught.value, openai.BadRequestError)


def message(served: Served, **fields: Any) -> Any:
    client = anthropic.Anthropic(
        base_url=served.url.removesuffix("/v1"), api_key="none", max_retries=0
    )
    given = {"model": "demo", "messages": USER, "max_tokens": 200, **fields}
    return client.messages.create(**given, extra_body={"seed": 1})


def test_messages_whose_calls_and_formats_are_bound(served: Served) -> None:
    """The same in Anthropic's dialect."""
    tools = [
        {"name": each.__name__, "input_schema": each.model_json_schema()}
        for each in (get_weather, get_time)
    ]
    (block,) = message(
        served, tools=tools, tool_choice={"type": "tool", "name": "get_time"}
    ).content
    assert get_time.model_validate(block.input)
    answer = message(
        served,
        tools=tools,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    (block,) = answer.content
    assert answer.stop_reason == "tool_use"
    assert {"get_time": get_time, "get_weather": get_weather}[block.name].model_validate(
        block.input
    )
    schema = Person.model_json_schema()
    answer = message(served, output_config={"format": {"type": "json_schema", "schema": schema}})
    (block,) = answer.content
    assert Person.model_validate_json(block.text)

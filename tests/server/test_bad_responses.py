"""Malformed or unsupported requests of the Responses API are refused like all others."""

from __future__ import annotations

from typing import Any

import pytest
from support.http_client import Server, refused


def response(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "input": "a", **fields}


def part(**fields: Any) -> dict[str, Any]:
    return response(input=[{"role": "user", "content": [fields]}])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "fake"}, "input"),
        (response(input=[]), "input"),
        (response(input=5), "input"),
        (response(input=[{"role": "wizard", "content": "a"}]), "input[0].role"),
        (response(input=[{"role": "user"}]), "input[0].content"),
        (response(input=[{"type": "image", "role": "user", "content": ""}]), "input[0].type"),
        (response(input=[{"type": "reasoning", "role": "user"}]), "input[0].role"),
        (part(type="input_image", image_url="data:"), "input[0].content[0].type"),
        (part(type="input_text"), "input[0].content[0]"),
        (part(type="input_text", text="a", refusal="b"), "input[0].content[0]"),
        (part(type="output_text", text="a"), "input[0].content[0]"),
        (response(max_output_tokens=0), "max_output_tokens"),
        (response(max_output_tokens=10**9), "max_output_tokens"),
        (response(max_tokens=5), "max_tokens"),
        (response(temperature=-1), "temperature"),
        (response(top_logprobs=2), "top_logprobs"),
        (response(top_logprobs=10**6, include=["message.output_text.logprobs"]), "top_logprobs"),
        (response(include=["reasoning.summary"]), "include[0]"),
        (response(metadata={"a": 5}), "metadata[...]"),
        (response(n=2), "n"),
        (response(store="yes"), "store"),
        (response(background=True), "background"),
        (response(previous_response_id="resp_1"), "previous_response_id"),
        (response(tools=[{"type": "web_search"}]), "tools[0].type"),
        (response(text={"format": {"type": "xml"}}), "text.format.type"),
        (response(reasoning={"effort": "hgih"}), "reasoning.effort"),
        (response(truncation="middle"), "truncation"),
        (response(stop=["x"] * 20_000), "stop"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_fields_of_responses(server: Server, body: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        named = refused(server.post("/v1/responses", {**body, "stream": stream}))["param"]
        assert named.replace("[...]", "[0]") == param.replace("[...]", "[0]")

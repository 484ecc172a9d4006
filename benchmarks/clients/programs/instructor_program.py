"""instructor: an object of a class, in each of its modes for OpenAI's API."""

from __future__ import annotations

from functools import partial
from typing import Any

import instructor
import openai
from checks import HI, KEY, MODEL, URL, Trip, attempt

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def made(mode: Any) -> None:
    fields = {"max_tokens": 200, "temperature": 0}
    if "RESPONSES" in mode.name:
        fields = {"max_output_tokens": 200, "temperature": 0}
    patched = instructor.from_openai(client, mode=mode)
    trip = patched.chat.completions.create(
        model=MODEL, messages=HI, response_model=Trip, max_retries=0, **fields
    )
    assert isinstance(trip, Trip)


def streamed(name: str) -> None:
    patched = instructor.from_openai(client, mode=getattr(instructor.Mode, name))
    *_, last = patched.chat.completions.create_partial(
        model=MODEL, messages=HI, response_model=Trip, max_tokens=200, temperature=0
    )
    assert last.city


MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")
for name in MODES:
    mode = getattr(instructor.Mode, name, None)
    if mode is not None:
        attempt(f"{name}", partial(made, mode))
for name in ("TOOLS", "JSON_SCHEMA"):
    attempt(f"{name}, streamed", partial(streamed, name))

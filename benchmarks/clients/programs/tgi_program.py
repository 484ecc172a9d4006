"""text-generation, the older client of Text Generation Inference: texts, streams, grammars."""

from __future__ import annotations

import asyncio

from checks import TOKENS, URL, Trip, attempt
from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError
from text_generation.types import Grammar, GrammarType

ADDRESS = URL.removesuffix("/v1")
PROMPT = "import os"
client = Client(ADDRESS, timeout=100)


def texts() -> None:
    answer = client.generate(PROMPT, max_new_tokens=TOKENS, decoder_input_details=True)
    assert answer.generated_text
    assert len(answer.details.tokens) == TOKENS
    assert answer.details.prefill[0].logprob is None


def streams() -> None:
    whole = client.generate(PROMPT, max_new_tokens=TOKENS, top_n_tokens=2)
    events = list(client.generate_stream(PROMPT, max_new_tokens=TOKENS, top_n_tokens=2))
    assert [each.token for each in events] == whole.details.tokens
    assert [each.top_tokens for each in events] == whole.details.top_tokens
    assert events[-1].generated_text == whole.generated_text


async def both() -> None:
    beside = AsyncClient(ADDRESS, timeout=100)
    whole = await beside.generate(PROMPT, max_new_tokens=TOKENS)
    text = [
        each.token.text
        async for each in beside.generate_stream(PROMPT, max_new_tokens=TOKENS)
        if not each.token.special
    ]
    assert "".join(text) == whole.generated_text


def samples() -> None:
    answer = client.generate(PROMPT, max_new_tokens=8, do_sample=True, best_of=2)
    assert len(answer.details.best_of_sequences or []) == 1


def formats() -> None:
    grammar = Grammar(type=GrammarType.Json, value=Trip.model_json_schema())
    answer = client.generate(PROMPT, max_new_tokens=100, grammar=grammar)
    Trip.model_validate_json(answer.generated_text)


def errors() -> None:
    try:
        client.generate(PROMPT, watermark=True)
    except ValidationError:
        return
    raise AssertionError("no error")


attempt("texts with details", texts)
attempt("streams", streams)
attempt("the same without blocking", lambda: asyncio.run(both()))
attempt("the best of several", samples)
attempt("grammars", formats)
attempt("an error is one of the client's own", errors)

"""huggingface_hub's client of Text Generation Inference: texts, details, streams, grammars."""

from __future__ import annotations

import json
from typing import Any

from checks import TOKENS, URL, Trip, attempt
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

ADDRESS = URL.removesuffix("/v1")
client: Any = InferenceClient(base_url=ADDRESS)  # it takes and gives more than its types say
PROMPT = "import os"


def texts() -> None:
    text = client.text_generation(PROMPT, max_new_tokens=TOKENS)
    assert text
    full = client.text_generation(PROMPT, max_new_tokens=TOKENS, return_full_text=True)
    assert full == PROMPT + text


def details() -> None:
    answer = client.text_generation(
        PROMPT,
        max_new_tokens=TOKENS,
        details=True,
        decoder_input_details=True,
        top_n_tokens=2,
    )
    told = answer.details
    assert told is not None
    first: Any = told.prefill[0]  # typed as if each token had a log-probability
    assert first.logprob is None
    assert told.generated_tokens == len(told.tokens) == TOKENS
    assert "".join(each.text for each in told.tokens) == answer.generated_text
    assert told.top_tokens is not None
    likeliest = [tops[0]["id"] for tops in told.top_tokens]  # which this client leaves as dicts
    assert likeliest == [each.id for each in told.tokens]


def streams() -> None:
    whole = client.text_generation(PROMPT, max_new_tokens=TOKENS)
    parts = client.text_generation(PROMPT, max_new_tokens=TOKENS, stream=True)
    assert "".join(parts) == whole
    events = list(client.text_generation(PROMPT, max_new_tokens=TOKENS, stream=True, details=True))
    assert events[-1].generated_text == whole
    assert events[-1].details is not None
    assert events[-1].details.generated_tokens == len(events) == TOKENS


def samples() -> None:
    answer = client.text_generation(
        PROMPT, max_new_tokens=8, do_sample=True, best_of=2, details=True, top_p=0.9
    )
    assert answer.details is not None
    assert len(answer.details.best_of_sequences or []) == 1


def formats() -> None:
    schema: Any = {"type": "json", "value": Trip.model_json_schema()}
    Trip.model_validate_json(client.text_generation(PROMPT, max_new_tokens=100, grammar=schema))
    digits: Any = {"type": "regex", "value": "[0-9]{3}"}
    assert json.loads(client.text_generation(PROMPT, grammar=digits).lstrip("0") or "0") < 1000


def the_server() -> None:
    teller = InferenceClient(ADDRESS, provider="hf-inference")  # other providers have no such thing
    assert teller.get_endpoint_info()["max_total_tokens"] > 0
    assert teller.health_check()


def errors() -> None:
    try:
        client.text_generation(PROMPT, watermark=True)
    except ValidationError:
        return
    raise AssertionError("no error")


attempt("texts", texts)
attempt("details", details)
attempt("streams, of texts and with details", streams)
attempt("the best of several", samples)
attempt("grammars", formats)
attempt("info and health", the_server)
attempt("an error is one of the client's own", errors)

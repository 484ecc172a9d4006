"""Turns the requests of the dialect into equal completions in OpenAI's."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from penstock.server.errors import ApiError
from penstock.server.openai.names import Names
from penstock.server.openai.protocol import CompletionRequest, StructuredOutputs
from penstock.server.tgi.protocol import AnyTgiRequest, TgiGrammar, TgiParameters

GRAMMAR: Final = "parameters.grammar.value"
COMPLETION: Final = Names("parameters.max_new_tokens", GRAMMAR, GRAMMAR, messages="inputs")
"""What the dialect calls the fields of a chat."""
NAMES: Final[Mapping[str, str]] = {
    "prompt": "inputs",
    "max_tokens": "parameters.max_new_tokens",
    "logprobs": "parameters.top_n_tokens",
    "truncate_prompt_tokens": "parameters.truncate",
    "structured_outputs.json": GRAMMAR,
    "structured_outputs.regex": GRAMMAR,
    **{
        name: f"parameters.{name}"
        for name in (
            *("temperature", "top_k", "top_p", "repetition_penalty", "frequency_penalty"),
            *("seed", "stop", "best_of"),
        )
    },
}
"""What it calls the fields of a completion."""
_SEED_BITS: Final = 63


def completion_of(request: AnyTgiRequest) -> CompletionRequest:
    """Return the request as a completion. One that samples has a seed, drawn where the client
    gives none. Raises ApiError naming the field at fault."""
    given = request.parameters
    _check(request)
    sampled = samples(given)
    seed = given.seed
    if sampled and seed is None:
        seed = secrets.randbits(_SEED_BITS)
    told = request.stream or given.details
    return CompletionRequest(
        model=request.model,
        prompt=request.inputs,
        max_tokens=given.max_new_tokens,
        temperature=given.temperature if sampled else 0.0,
        top_k=given.top_k,
        top_p=given.top_p,
        repetition_penalty=given.repetition_penalty,
        frequency_penalty=given.frequency_penalty,
        seed=seed,
        stop=given.stop or None,
        include_stop_str_in_output=True,
        truncate_prompt_tokens=given.truncate,
        best_of=given.best_of,
        logprobs=(given.top_n_tokens or 0) if told else None,
        prompt_logprobs=0 if given.decoder_input_details and told else None,
        structured_outputs=_structured(given.grammar),
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def samples(given: TgiParameters) -> bool:
    """Whether tokens are sampled: a temperature of 1 alone does not say so, as it changes nothing,
    and one of 0 says that they are not."""
    return given.temperature != 0 and (
        given.do_sample
        or given.temperature not in (None, 1.0)
        or given.top_k is not None
        or given.top_p is not None
    )


def _check(request: AnyTgiRequest) -> None:
    given = request.parameters
    if request.stream and (given.best_of or 1) > 1:
        raise _refused("best_of", "which sequence is the best is known at the end; do not stream")
    if request.stream and given.decoder_input_details:
        raise _refused("decoder_input_details", "streams do not tell of the prompt; do not stream")
    if given.truncate is not None and given.truncate < 1:
        raise _refused("truncate", f"must be at least 1, not {given.truncate}")


def _structured(grammar: TgiGrammar | None) -> StructuredOutputs | None:
    if grammar is None:
        return None
    value = grammar.value
    if grammar.type == "regex":
        if not isinstance(value, str):
            raise _refused("grammar.value", "must be a regular expression, which is text")
        return StructuredOutputs(regex=value)
    if grammar.type == "json_schema" and isinstance(value, dict):
        schema = value.get("schema")
        if not isinstance(schema, dict):
            raise _refused("grammar.value.schema", "must be a JSON schema that is an object")
        return StructuredOutputs(json=schema)
    return StructuredOutputs(json=value)


def _refused(name: str, why: str) -> ApiError:
    return ApiError(400, f"parameters.{name}: {why}", param=f"parameters.{name}")

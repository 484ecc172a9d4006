"""Turns the requests of the dialect into equal ones in OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.grammar.spec import GrammarSpec
from penstock.server.errors import ApiError
from penstock.server.llama.protocol import LlamaAsked
from penstock.server.openai.constraint import Constraint, schema_text
from penstock.server.openai.names import Names
from penstock.server.openai.protocol import CompletionRequest
from penstock.server.openai.tools import check_nesting

COMPLETION: Final = Names("n_predict", "json_schema", "json_schema", messages="prompt")
"""What the dialect calls the fields of a chat."""
NAMES: Final[Mapping[str, str]] = {
    "max_tokens": "n_predict",
    "logprobs": "n_probs",
    "repetition_penalty": "repeat_penalty",
}
"""What it calls the fields of a completion."""

_DRAWN: Final = (-1, 2**32 - 1)
"""Seeds that mean one that is drawn."""
_NEVER: Final = -100.0
"""The bias that bans a token in practice."""


def completion_of(request: LlamaAsked, prompt: str | Sequence[int]) -> CompletionRequest:
    """Return the request as a completion of ``prompt``, but for its constraint. Raises ApiError
    naming the field at fault."""
    predict, temperature = request.n_predict, request.temperature
    return CompletionRequest(
        model=request.model,
        prompt=prompt if isinstance(prompt, str) else list(prompt),
        # The engine computes no prompt without a next token; it is not reported.
        max_tokens=None if predict < 0 else max(predict, 1),
        temperature=None if temperature is None else max(temperature, 0.0),
        top_k=None if request.top_k is None else max(request.top_k, 0),
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repeat_penalty,
        repeat_last_n=request.repeat_last_n,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=None if request.seed in _DRAWN else request.seed,
        stop=request.stop or None,
        ignore_eos=request.ignore_eos,
        logit_bias=_biases(request),
        logprobs=request.n_probs or None,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def constraint_of(request: LlamaAsked) -> Constraint | None:
    """What the answer must be. Raises ApiError or RequestError naming the field at fault."""
    schema = request.json_schema
    if schema is not None and request.grammar:
        raise ApiError(
            400, "json_schema: grammar binds the output already; send one of them", param="grammar"
        )
    if request.grammar:
        return Constraint(GrammarSpec(kind="gbnf", text=request.grammar), "grammar")
    if schema is None:
        return None
    check_nesting(schema, "json_schema")
    text = schema_text(schema, "json_schema")
    return Constraint(GrammarSpec(kind="json_schema", text=text), "json_schema")


def _biases(request: LlamaAsked) -> dict[int, float] | None:
    given = request.logit_bias
    if given is None or isinstance(given, dict):
        return given
    found: dict[int, float] = {}
    for i, pair in enumerate(given):
        token, bias = pair if len(pair) == 2 else (None, None)
        if type(token) is not int or bias is None or bias is True:
            at = f"logit_bias[{i}]"
            raise ApiError(400, f"{at}: must be a token and its bias, or false", param=at)
        found[token] = found.get(token, 0.0) + (_NEVER if bias is False else bias)
    return found

"""Checks whether a model can serve a request, by its values and lengths, before it is queued.

The scheduler checks what depends on the size of the cache.
"""

from __future__ import annotations

from penstock.errors import ContextLengthError, RequestError, shown
from penstock.interface.messages import EngineRequest
from penstock.interface.token_ids import check_token_ids, the
from penstock.length_limits import LengthLimits
from penstock.sampling.params import SamplingParams

_INT64 = range(-(2**63), 2**63)


def check_request(
    request: EngineRequest, vocab_size: int, lengths: LengthLimits, hidden_size: int | None = None
) -> None:
    """Raise RequestError if a model with these limits cannot serve the request.

    ``hidden_size`` is the number of components of an embedding, where that is known.
    """
    pooling = request.pooling
    if pooling is None:
        request.params.validate(vocab_size)
    else:
        pooling.validate(hidden_size)
    for name, value in (
        ("dimensions", 0 if pooling is None else pooling.dimensions or 0),
        ("priority", request.priority),
    ):
        if value not in _INT64:
            raise RequestError(f"{name} must fit in 64 bits, not {shown(value)}", name)
    answer = request.params if pooling is None else None
    check_length(len(request.prompt_token_ids), answer, lengths)
    check_token_ids(request.prompt_token_ids, vocab_size)
    if request.prediction:
        check_token_ids(request.prediction, vocab_size, "prediction")


def truncated(token_ids: list[int], params: SamplingParams, lengths: LengthLimits) -> list[int]:
    """The end of a prompt that ``params.truncate_prompt_tokens`` asks for; all of it by default.

    The options must be valid.
    """
    most = params.truncate_prompt_tokens
    if most is None:
        return token_ids
    if most == -1:
        answer = max(params.max_tokens or 1, params.min_tokens, 1)
        most = max(min(lengths.max_model_len - answer, lengths.longest_prompt), 1)
    return token_ids[-most:]


def check_length(
    prompt: int, params: SamplingParams | None, lengths: LengthLimits, param: str = "prompt"
) -> None:
    """Raise RequestError unless a prompt may have so many tokens, and the answer to it as many as
    are asked for.

    ``params`` is None for a prompt without output, such as one to embed. ``param`` is the field of
    the prompt.
    """
    if prompt == 0:
        raise RequestError(f"{the(param)} is empty; give it at least one token", param)
    max_model_len, longest = lengths.max_model_len, lengths.max_input_len
    if longest is not None and prompt > longest:
        raise ContextLengthError(
            f"{the(param)} has {prompt} tokens, and prompts may have {longest} here "
            f"(max_input_len, {lengths.origin}); shorten it by at least {prompt - longest}",
            param,
        )
    if params is None:
        if prompt > max_model_len:
            raise ContextLengthError(
                f"{the(param)} has {prompt} tokens, and the context (max_model_len) holds "
                f"{max_model_len}; shorten or split it",
                param,
            )
        return
    if prompt >= max_model_len:
        raise ContextLengthError(
            f"{the(param)} has {prompt} tokens, and the context (max_model_len) holds "
            f"{max_model_len}, prompt and output together: it must be at least "
            f"{prompt - max_model_len + 1} tokens shorter to leave room for one token of output",
            param,
        )
    check_output(prompt, "min_tokens", params.min_tokens, lengths)
    check_output(prompt, "max_tokens", params.max_tokens, lengths)


def check_output(prompt: int, name: str, asked: int | None, lengths: LengthLimits) -> None:
    """Raise RequestError if the option ``name`` asks for more tokens of output than an answer may
    have, or the context leaves after a prompt of ``prompt`` tokens, which is shorter than it."""
    remaining = lengths.room(prompt)
    if asked is None or asked <= remaining:
        return
    instead = "" if name == "min_tokens" else ", leave it out"
    longest = lengths.max_output_len
    if longest is not None and asked > longest:
        raise ContextLengthError(
            f"{name} asks for {shown(asked)} tokens, and answers may have {longest} here "
            f"(max_output_len, {lengths.origin}); lower it to at most {remaining}{instead}",
            name,
        )
    max_model_len = lengths.max_model_len
    raise ContextLengthError(
        f"the prompt has {prompt} tokens and {name} asks for {shown(asked)} more, together "
        f"{shown(prompt + asked)}, but the context (max_model_len) holds {max_model_len}; lower "
        f"{name} to at most {remaining}{instead} or shorten the prompt",
        name,
    )

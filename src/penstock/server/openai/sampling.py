"""Turns the fields of a request into the sampling options of the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.engine.ipc.wire import ModelFacts
from penstock.errors import RequestError
from penstock.grammar.spec import GrammarSpec
from penstock.interface.request_checks import check_output, truncated
from penstock.sampling.beam_search import MAX_WIDTH, BeamSearch
from penstock.sampling.defaults import SamplingDefaults
from penstock.sampling.params import SamplingParams
from penstock.sampling.ranges import MAX_LOGPROBS, MAX_SEQUENCES
from penstock.server.errors import ApiError
from penstock.server.openai.protocol import ChatRequest, CompletionRequest, Sampling

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; chats run to the end of the context."""

_SAME_NAME = (
    "n",
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "repeat_last_n",
    "ignore_eos",
    "min_tokens",
    "prompt_logprobs",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


def completion_params(request: CompletionRequest, model: ModelFacts, prompt: int) -> SamplingParams:
    """Options of a completion whose longest prompt has ``prompt`` tokens.

    What the request leaves out is as the model's makers recommend, but for the number of tokens.

    Raises RequestError or ApiError naming the field that cannot be honoured.
    """
    n, remaining = _sequences(request), model.lengths.room(prompt)
    search = _beam_search(request, n)
    if search is not None:
        n = request.n or 1
    max_tokens = request.max_tokens
    if max_tokens == 0 and request.echo:
        max_tokens = 1  # the engine computes no prompt without a next token; it is not reported
    elif max_tokens is None:
        # Where the prompt leaves no tokens, it is the prompt that is refused.
        max_tokens = max(min(COMPLETION_MAX_TOKENS, remaining), request.min_tokens or 0, 1)
    logprobs, prompt_logprobs = request.logprobs, request.prompt_logprobs
    if request.echo and prompt_logprobs is None:
        prompt_logprobs = logprobs
    if logprobs is None and request.best_of is not None and search is None:
        logprobs = 0  # the best are chosen by the log-probabilities of their tokens
    params = _params(
        request,
        model.sampling_defaults,
        search,
        n=n,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    params.validate(model.vocab_size)
    _check_fits("max_tokens", request.max_tokens, prompt, model)
    return params


def chat_params(
    request: ChatRequest,
    model: ModelFacts,
    prompt: int,
    limit: str = "max_completion_tokens",
) -> SamplingParams:
    """Options of a chat whose prompt has ``prompt`` tokens; raises as above.

    ``limit`` is what the client calls ``max_completion_tokens``.
    """
    asked, name = request.max_completion_tokens, limit
    if asked is None:
        asked, name = request.max_tokens, "max_tokens"
    elif request.max_tokens is not None and request.max_tokens != asked:
        raise ApiError(
            400,
            f"max_tokens ({request.max_tokens}) and max_completion_tokens ({asked}) disagree; "
            "send one of them",
            param="max_tokens",
        )
    if asked is not None and asked < 1:
        raise ApiError(400, f"{name} must be at least 1, not {asked}", param=name)
    logprobs: int | None = None
    if request.logprobs:
        logprobs = request.top_logprobs or 0
        if not 0 <= logprobs <= MAX_LOGPROBS:
            raise ApiError(
                400,
                f"top_logprobs must be from 0 to {MAX_LOGPROBS}, not {logprobs}",
                param="top_logprobs",
            )
    elif request.top_logprobs:
        raise ApiError(400, "top_logprobs is only allowed with logprobs=true", param="top_logprobs")
    defaults = model.sampling_defaults
    max_tokens = asked
    if asked is None and defaults.max_tokens is not None:
        max_tokens = max(defaults.tokens(model.lengths.room(prompt)) or 0, request.min_tokens or 0)
    search = _beam_search(request, request.n or 1)
    params = _params(request, defaults, search, max_tokens=max_tokens, logprobs=logprobs)
    params.validate(model.vocab_size)
    _check_fits(name, asked, prompt, model)
    return params


def _sequences(request: CompletionRequest) -> int:
    """How many to generate of each prompt: ``best_of``, of which the best ``n`` are answered."""
    n, best_of = 1 if request.n is None else request.n, request.best_of
    if best_of is None:
        return n
    if not 1 <= best_of <= MAX_SEQUENCES:
        raise ApiError(
            400, f"best_of must be from 1 to {MAX_SEQUENCES}, not {best_of}", param="best_of"
        )
    if best_of < n:
        raise ApiError(
            400,
            f"best_of ({best_of}) must be at least n ({n}): the answer is the best n of best_of",
            param="best_of",
        )
    if best_of > n and request.stream:
        raise ApiError(
            400,
            f"best_of ({best_of}) over n ({n}) cannot be streamed: which are the best is known "
            "at the end",
            param="best_of",
        )
    return best_of


def _beam_search(request: Sampling, width: int) -> BeamSearch | None:
    """The beam search that is asked for, with vLLM's fields; raises ApiError for options of one
    that is not."""
    penalty, early = request.length_penalty, request.early_stopping
    if request.use_beam_search:
        if not 1 <= width <= MAX_WIDTH:
            name = "best_of" if getattr(request, "best_of", None) is not None else "n"
            raise ApiError(
                400,
                f"{name} says how many beams go on together, from 1 to {MAX_WIDTH}, not {width}",
                param=name,
            )
        return BeamSearch(
            width=width,
            length_penalty=1.0 if penalty is None else penalty,
            early_stopping=bool(early),
        )
    for name, asked in (("length_penalty", penalty not in (None, 1.0)), ("early_stopping", early)):
        if asked:
            raise ApiError(
                400, f"{name} is an option of a beam search; send use_beam_search: true", param=name
            )
    return None


def _params(
    request: Sampling, defaults: SamplingDefaults, search: BeamSearch | None, **values: Any
) -> SamplingParams:
    for name in _SAME_NAME:
        value = getattr(request, name)
        if value is not None:
            values.setdefault(name, value)
    if search is not None:
        values["beam_search"] = search
    else:
        values = defaults.sampled | values
    if request.stop is not None:
        values["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.stop_token_ids is not None:
        values["stop_token_ids"] = tuple(request.stop_token_ids)
    for name in ("bad_words", "allowed_token_ids"):
        given = getattr(request, name)
        if given is not None:
            values[name] = tuple(given)
    return SamplingParams(**values)


def kept_prompt(
    token_ids: list[int], request: Sampling, output: int | None, model: ModelFacts
) -> list[int]:
    """The end of a prompt that ``truncate_prompt_tokens`` asks for; all of it by default.

    ``output`` is the number of tokens to leave room for, where that is asked for.
    """
    if request.truncate_prompt_tokens is None:
        return token_ids
    params = SamplingParams(
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        max_tokens=None if output is None else max(output, request.min_tokens or 0, 1),
    )
    params.validate()
    return truncated(token_ids, params, model.lengths)


def stopped_by(params: SamplingParams, token: int | None) -> SamplingParams:
    """``params`` with one more token that ends the output, if there is such a token."""
    if token is None or params.ignore_eos:
        return params
    stops = dict.fromkeys((*params.stop_token_ids, token))
    return msgspec.structs.replace(params, stop_token_ids=tuple(stops))


def bound_by(
    params: SamplingParams, grammar: GrammarSpec, param: str, model: ModelFacts
) -> SamplingParams:
    """These options with the grammar that the field ``param`` asks for, which says what
    ``bad_words`` say, too. Raises RequestError for options that cannot go with it."""
    if params.beam_search is not None:
        raise RequestError(f"{param} cannot go with a beam search; leave it out", param)
    bound = msgspec.structs.replace(params, grammar=grammar, bad_words=())
    bound.validate(model.vocab_size)
    return bound


def _check_fits(name: str, asked: int | None, prompt: int, model: ModelFacts) -> None:
    """Refuse more output than can be had; a prompt that leaves none fails elsewhere."""
    if prompt <= model.lengths.longest_prompt:
        check_output(prompt, name, asked, model.lengths)

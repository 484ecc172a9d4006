"""Decodes bodies that ask for a text, and turns them into completions in OpenAI's dialect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock.server.body_decoder import BodyDecoder, Decoded
from penstock.server.errors import ApiError
from penstock.server.kserve.field_table import rules_of
from penstock.server.kserve.paths import GENERATE
from penstock.server.kserve.protocol import TextParameters, TextRequest
from penstock.server.openai.names import Names
from penstock.server.openai.protocol import CompletionRequest

NAMES: Final = Names("max_tokens", "structured_outputs", "structured_outputs.json")
"""What the dialect calls the fields of a completion that errors name."""

_SAMPLING: Final = "sampling_parameters"
_TRUTHS: Final = {"true": True, "false": False}


class TextDecoder(BodyDecoder[TextRequest]):
    """Decodes bodies that ask for a text. ``sampling_parameters`` may be JSON in a text."""

    def __init__(self) -> None:
        super().__init__(TextRequest, rules_of(GENERATE))

    def converted(self, given: Any) -> Decoded[TextRequest]:
        if isinstance(given, dict) and isinstance(given.get(_SAMPLING), str):
            given[_SAMPLING] = self._from_text(given[_SAMPLING])
        if isinstance(given, dict) and isinstance(given.get(_SAMPLING), dict):
            options = given[_SAMPLING]
            given[_SAMPLING] = {name: _plain(name, value) for name, value in options.items()}
        return super().converted(given)

    def _from_text(self, text: str) -> dict[str, Any]:
        """The options that the text has. Raises ApiError where it has none."""
        try:
            found = self._parsed(text.encode())
        except ApiError as error:
            why = error.body.error.message.removeprefix("the body").lstrip(": ")
            raise _no_options(why) from None
        if not isinstance(found, dict):
            raise _no_options("must be an object")
        return found


def merged(request: TextRequest) -> TextParameters:
    """The options of a request, from all places where they may stand. Raises ApiError where two
    disagree."""
    found: dict[str, tuple[str, Any]] = {}
    for place, options in _places(request):
        for name in TextParameters.__struct_fields__:
            value = getattr(options, name)
            if value is None:
                continue
            before, known = found.setdefault(name, (place, value))
            if known != value:
                why = f"{place}{name} and {before}{name} disagree; send one of them"
                raise ApiError(400, why, param=f"{place}{name}")
    return TextParameters(**{name: value for name, (_, value) in found.items()})


def completion(model: str, prompt: str, asked: TextParameters) -> CompletionRequest:
    """The same request as a completion."""
    return CompletionRequest(
        model=model,
        prompt=prompt,
        max_tokens=asked.max_tokens,
        min_tokens=asked.min_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        seed=asked.seed,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        stop=_words(asked.stop_words),
        bad_words=_words(asked.bad_words),
        stop_token_ids=asked.stop_token_ids,
        ignore_eos=asked.ignore_eos,
        skip_special_tokens=asked.skip_special_tokens,
        include_stop_str_in_output=asked.include_stop_str_in_output,
        structured_outputs=asked.structured_outputs,
        cache_salt=asked.cache_salt,
        logprobs=0 if asked.return_cumulative_logprob else None,
    )


def with_prompt(asked: TextParameters) -> bool:
    """Whether the prompt stands before the answer. Raises ApiError in a stream."""
    if not asked.stream:
        return not asked.exclude_input_in_output
    if asked.exclude_input_in_output is False:
        raise ApiError(
            400,
            "exclude_input_in_output: a stream is of the answer alone; send true, or no stream",
            param="exclude_input_in_output",
        )
    return False


def _places(request: TextRequest) -> Iterator[tuple[str, TextParameters]]:
    yield "", request
    yield "parameters.", request.parameters
    if isinstance(request.sampling_parameters, TextParameters):
        yield f"{_SAMPLING}.", request.sampling_parameters


def _words(given: str | list[str] | None) -> list[str] | None:
    if not given:
        return None
    return [given] if isinstance(given, str) else given


def _plain(name: str, value: object) -> object:
    """``value`` as a number or truth value, if it is one in a text and the option ``name`` is no
    text."""
    if not isinstance(value, str) or name in _TEXTS:
        return value
    if value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    try:
        found = msgspec.json.decode(value, type=int | float)
    except msgspec.DecodeError:
        return value
    return found


_TEXTS: Final = frozenset(("stop_words", "stop", "bad_words", "cache_salt"))
"""Options that are texts themselves."""


def _no_options(why: str) -> ApiError:
    return ApiError(400, f"{_SAMPLING}: {why}", param=_SAMPLING)

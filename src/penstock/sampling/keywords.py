"""Keywords of ``SamplingParams`` that vLLM's users write and that are no fields of it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import RequestError, shown
from penstock.grammar.structured_outputs import StructuredOutputsParams

_NO_STEP: Final = "there is no such step in sampling; leave it out"
_FOREIGN: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "best_of": ((1,), "n makes as many, and cumulative_logprob tells which are the likeliest"),
    "use_beam_search": ((False,), "n makes several, which are drawn apart"),
    "length_penalty": ((1.0,), _NO_STEP),
    "early_stopping": ((False,), _NO_STEP),
    "logits_processors": (([], ()), "logit_bias, bad_words and grammar say what they would"),
    "detokenize": ((True,), "leave it out: token_ids are there, too"),
    "spaces_between_special_tokens": ((True,), "tokens are joined as the tokenizer does it"),
    "output_kind": ((), "stream() gives outputs so far, generate() final ones"),
    "extra_args": (({},), _NO_STEP),
    "temperature_last": ((False,), "min_p, top_k and top_p act after the temperature"),
}
"""Values that ask for nothing, and what to do instead of others."""
_CONSTRAINTS: Final = ("structured_outputs", "guided_decoding")


class VllmKeywords(type(msgspec.Struct)):  # type: ignore[misc]
    """Makes a struct whose constructor takes keywords of vLLM's, too.

    ``structured_outputs`` and ``guided_decoding`` become its ``grammar``; others are accepted where
    they ask for nothing. Raises RequestError for those that do, and for unknown names.
    """

    if not TYPE_CHECKING:  # so that the fields' types are those that are checked

        def __call__(cls, *args: Any, **given: Any) -> Any:
            if not given.keys() <= set(cls.__struct_fields__):
                given = _known(cls.__struct_fields__, given)
            return super().__call__(*args, **given)


def _known(fields: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in given.items() if name in fields}
    for name, value in given.items():
        if name in fields or value is None:
            continue
        if name in _CONSTRAINTS:
            kept["grammar"] = _one_grammar(kept.get("grammar"), name, value)
        elif name in _FOREIGN:
            neutral, hint = _FOREIGN[name]
            if not any(type(value) is type(each) and value == each for each in neutral):
                raise RequestError(f"{name}={shown(value)} cannot be honoured: {hint}", name)
        else:
            near = get_close_matches(name, [*fields, *_FOREIGN], n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            raise RequestError(f"SamplingParams has no option {name!r}; {hint}", name)
    return kept


def _one_grammar(before: object, name: str, value: object) -> object:
    if before is not None:
        raise RequestError(f"{name}: another option binds the output already; give one", name)
    if isinstance(value, Mapping):
        try:
            value = msgspec.convert(value, StructuredOutputsParams)
        except msgspec.ValidationError as error:
            raise RequestError(f"{name}: {error}", name) from None
    if not isinstance(value, StructuredOutputsParams):
        raise RequestError(f"{name} must be StructuredOutputsParams, not {shown(value)}", name)
    return value.grammar_spec

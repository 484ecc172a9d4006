"""Keywords of ``SamplingParams`` that vLLM's users write and that are no fields of it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import RequestError, shown
from penstock.grammar.structured_outputs import StructuredOutputsParams
from penstock.sampling.beam_search import BeamSearch
from penstock.vllm_names import Foreign

_NO_STEP: Final = "there is no such step in sampling; leave it out"
_FOREIGN: Final[Mapping[str, Foreign]] = {
    "best_of": Foreign(
        (1,), "n makes as many, and cumulative_logprob tells which are the likeliest"
    ),
    "use_beam_search": Foreign((False,), "beam_search=BeamSearch(width=...) asks for it"),
    "length_penalty": Foreign((1.0,), "it is an option of BeamSearch"),
    "early_stopping": Foreign((False,), "it is an option of BeamSearch"),
    "logits_processors": Foreign(([], ()), "logit_bias, bad_words and grammar say what they would"),
    "detokenize": Foreign((True,), "leave it out: token_ids are there, too"),
    "spaces_between_special_tokens": Foreign((True,), "tokens are joined as the tokenizer does it"),
    "output_kind": Foreign((), "stream() gives outputs so far, generate() final ones"),
    "extra_args": Foreign(({},), _NO_STEP),
    "temperature_last": Foreign((False,), "min_p, top_k and top_p act after the temperature"),
}
_OF_SEARCH: Final = ("length_penalty", "early_stopping")
_OF_BEAMS: Final = ("use_beam_search", "best_of", *_OF_SEARCH)
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
    if given.get("use_beam_search") is True:
        kept["beam_search"] = _beam_search(given)
        given = {name: value for name, value in given.items() if name not in _OF_BEAMS}
    for name, value in given.items():
        if name in fields or value is None:
            continue
        if name in _CONSTRAINTS:
            kept["grammar"] = _one_grammar(kept.get("grammar"), name, value)
        elif name in _FOREIGN:
            _FOREIGN[name].check(name, value, RequestError)
        else:
            near = get_close_matches(name, [*fields, *_FOREIGN], n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            raise RequestError(f"SamplingParams has no option {name!r}; {hint}", name)
    return kept


def _beam_search(given: Mapping[str, Any]) -> BeamSearch:
    """What older versions of vLLM asked for by options of their own."""
    width = given.get("best_of") or given.get("n") or 1
    options = {name: given[name] for name in _OF_SEARCH if given.get(name) is not None}
    return BeamSearch(width=width, **options)


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

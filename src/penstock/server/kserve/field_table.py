"""Every field that clients of the dialect send and this server does not act on, and whether it is
refused: as ``openai/field_table.py`` for its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.server.fields.rules import NO_VALUES, Rule, Values, any_of, these
from penstock.server.kserve.paths import GENERATE, GENERATE_STREAM, INFER

_TEXTS: Final = (GENERATE, GENERATE_STREAM)
_OBJECTS: Final = ("", "parameters.", "sampling_parameters.")
"""Where options of a text may stand."""
_ONE = "one answer is made"
_ASK_AGAIN = "send a request for each answer"
_FORM = "answers have no such form"
_SAMPLER = "there is no such step in sampling"
_ALONE = "requests do not depend on each other"


def _options(
    names: str,
    why: str,
    nothing: Values = NO_VALUES,
    advice: Values = NO_VALUES,
    fix: str = "leave it out",
    alias: str = "",
) -> Iterator[Rule]:
    """The rules of options, whose names are separated by spaces, wherever they may stand."""
    for name in names.split():
        for place in _OBJECTS:
            yield Rule(f"{place}{name}", _TEXTS, why, nothing, advice, fix, alias=alias)


TABLE: Final[tuple[Rule, ...]] = (
    *_options("stop", "vLLM's name of `stop_words`", alias="stop_words"),
    *_options("random_seed", "TensorRT-LLM's name of `seed`", alias="seed"),
    *_options("min_length", "TensorRT-LLM's name of `min_tokens`", alias="min_tokens"),
    *_options("n best_of beam_width num_return_sequences", _ONE, these(1), fix=_ASK_AGAIN),
    *_options("use_beam_search early_stopping", _SAMPLER, these(False)),
    *_options("length_penalty", _SAMPLER, these(1.0)),
    *_options("beam_search_diversity_rate", _SAMPLER, these(0.0)),
    *_options("return_logprobs return_log_probs return_context_logits return_generation_logits",
              _FORM, these(False), fix="ask `/v1/completions` for `logprobs`"),
    *_options("logprobs prompt_logprobs", _FORM, fix="ask `/v1/completions`"),
    *_options("detokenize spaces_between_special_tokens",
              "answers are text, as the tokenizer joins it", these(True)),
    *_options("pad_id", "nothing is padded", advice=any_of(int)),
    *_options("end_id", "the model's own ends of texts hold",
              fix="send `stop_token_ids`, and `ignore_eos` if nothing else is to end the text"),
    *_options("priority", "it is of the queues of a server of many models", these(0),
              any_of(int)),
    *_options("timeout", "a deadline is the header `x-request-timeout`, in seconds", these(0),
              any_of(int)),
    *_options("sequence_id", _ALONE, these(0, "")),
    *_options("sequence_start sequence_end", _ALONE, these(False)),
    *(Rule(f"inputs[].parameters.shared_memory_{name}", (INFER,),
           "the server shares no memory with clients", fix="send the tensor in the request")
      for name in ("region", "byte_size", "offset")),
    *(Rule(f"outputs[].parameters.shared_memory_{name}", (INFER,),
           "the server shares no memory with clients")
      for name in ("region", "byte_size", "offset")),
    Rule("outputs[].parameters.classification", (INFER,), "outputs are no classes", these(0)),
)  # fmt: skip


def rules_of(endpoint: str) -> tuple[Rule, ...]:
    """Return the rules for the bodies of one endpoint, by its path."""
    return tuple(rule for rule in TABLE if endpoint in rule.endpoints)

"""Every field that clients of the dialect send and this server does not act on, and whether it is
refused: as ``openai/field_table.py`` for its own."""

from __future__ import annotations

from dataclasses import replace

from penstock.server.fields.rules import NO_VALUES, Rule, Values, any_of, these
from penstock.server.llama.paths import COMPLETION, COMPLETIONS, INFILL, TEMPLATE
from penstock.server.openai.field_table import rules_of as openai_rules
from penstock.server.openai.paths import TOKENIZE

_ALL = (COMPLETION, COMPLETIONS, INFILL)
_NUMBER, _WHOLE, _SWITCH = any_of(int | float), any_of(int), any_of(bool)

_SAMPLER = "there is no such step in sampling"
_MACHINE = "it changes no answer"
_ORDERS = (
    ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    ["top_k", "typ_p", "top_p", "min_p", "temperature"],
)
"""What clients send as llama-server's default."""


def _options(
    names: str, why: str, nothing: Values = NO_VALUES, advice: Values = NO_VALUES
) -> tuple[Rule, ...]:
    """One rule for each of these fields, which are separated by spaces."""
    return tuple(Rule(name, _ALL, why, nothing, advice) for name in names.split())


TABLE: tuple[Rule, ...] = (
    Rule("max_tokens", _ALL, "another name of `n_predict`", alias="n_predict"),
    Rule("cache_prompt", _ALL, "cached prefixes change no answer", these(True), these(False)),
    *_options("id_slot n_cache_reuse", _MACHINE, advice=_WHOLE),
    *_options("n_keep n_discard", "prompts are not cut", advice=_WHOLE),
    *_options("sse_ping_interval", _MACHINE, advice=_NUMBER),
    *_options("return_progress", "a stream begins with the first token", these(False), these(True)),
    *_options("typical_p tfs_z", _SAMPLER, these(1.0)),
    *_options("mirostat dynatemp_range dry_multiplier xtc_probability min_keep n_indent", _SAMPLER,
              these(0)),
    *_options("penalize_nl", "penalties are of all tokens", these(True)),
    *_options("top_n_sigma", _SAMPLER, these(-1.0, 0)),
    *_options("mirostat_tau mirostat_eta", "`mirostat` alone turns it on", advice=_NUMBER),
    *_options("dynatemp_exponent", "`dynatemp_range` alone turns it on", advice=_NUMBER),
    *_options("dry_base dry_allowed_length dry_penalty_last_n",
              "`dry_multiplier` alone turns it on", advice=_NUMBER),
    *_options("dry_sequence_breakers", "`dry_multiplier` alone turns it on",
              advice=any_of(list[str])),
    *_options("xtc_threshold", "`xtc_probability` alone turns it on", advice=_NUMBER),
    Rule("samplers", _ALL, "the steps of sampling have one order, with temperature first",
         advice=these(*_ORDERS)),
    *_options("post_sampling_probs", "log-probabilities are those before sampling", these(False)),
    Rule("t_max_predict_ms", _ALL, "answers end by tokens", these(0),
         fix="send the header `X-Request-Timeout`"),
    Rule("n_cmpl", _ALL, "there is one answer", these(1), fix="ask `/v1/completions` with `n`"),
    Rule("n", _ALL, "there is one answer", these(1), fix="ask `/v1/completions` with `n`"),
    *_options("lora", "an adapter is asked for by its name, as `model`", these([])),
    *_options("image_data", "the model reads and writes text only", these([])),
    *_options("grammar_lazy", "a grammar binds all of the answer", these(False)),
    *_options("grammar_triggers preserved_tokens", "a grammar binds all of the answer", these([])),
    *_options("backend_sampling", _MACHINE, advice=_SWITCH),
    *(Rule(name, (TEMPLATE,), "this shows the prompt only", advice=any_of(kind)) for name, kind in (
        ("stream", bool), ("temperature", float), ("max_tokens", int), ("cache_prompt", bool))),
    Rule("tools", (TEMPLATE,), "the prompt is shown without them", these([]),
         fix="ask `/v1/chat/completions`"),
    *(replace(rule, endpoints=(TEMPLATE,))
      for rule in openai_rules(TOKENIZE) if rule.field.startswith("messages[]")),
)  # fmt: skip


def rules_of(endpoint: str) -> tuple[Rule, ...]:
    """Return the rules for the bodies of one endpoint, by its path."""
    return tuple(rule for rule in TABLE if endpoint in rule.endpoints)

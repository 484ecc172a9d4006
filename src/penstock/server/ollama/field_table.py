"""Every field that clients of the dialect send and this server does not act on, and whether it is
refused: as ``openai/field_table.py`` for its own."""

from __future__ import annotations

from typing import Any, Literal

from penstock.server.fields.rules import ANYTHING, NO_VALUES, Rule, Values, any_of, these
from penstock.server.ollama.paths import CHAT, EMBED, GENERATE, OLD_EMBED, SHOW

_ANSWERS = (GENERATE, CHAT)
_MODELS = (GENERATE, CHAT, EMBED, OLD_EMBED)
_NUMBER, _WHOLE, _SWITCH = any_of(int | float), any_of(int), any_of(bool)

_NO_MEDIA = "the model reads and writes text only"
_SAMPLER = "there is no such step in sampling"
_MACHINE = "it is decided when the server is started"
_LOADED = "the model is loaded as long as the server runs"


def _options(
    names: str, why: str, nothing: Values = NO_VALUES, advice: Values = NO_VALUES
) -> tuple[Rule, ...]:
    """One rule for each of these options, which are separated by spaces."""
    return tuple(Rule(f"options.{name}", _ANSWERS, why, nothing, advice) for name in names.split())


TABLE: tuple[Rule, ...] = (
    Rule("think", _ANSWERS, "only a chat template that reads a variable for it can follow",
         advice=any_of(bool | Literal["low", "medium", "high", "max"]), wish=True),
    Rule("keep_alive", _MODELS, _LOADED, advice=any_of(int | float | str)),
    Rule("options", (EMBED, OLD_EMBED), _MACHINE, these({}), any_of(dict[str, Any])),
    *_options("num_ctx", "prompts are not cut, and a shorter context changes no answer",
              advice=_WHOLE),
    *_options("num_keep", "prompts are not cut", advice=_WHOLE),
    *_options("numa low_vram f16_kv use_mmap use_mlock logits_all vocab_only embedding_only",
              _MACHINE, advice=_SWITCH),
    *_options("num_batch num_gpu main_gpu num_thread", _MACHINE, advice=_WHOLE),
    *_options("tfs_z typical_p", _SAMPLER, these(1.0)),
    *_options("mirostat", _SAMPLER, these(0)),
    *_options("mirostat_tau mirostat_eta", "`mirostat` alone turns it on", advice=_NUMBER),
    *_options("penalize_newline", "penalties are of all tokens", these(True)),
    Rule("template", (GENERATE,), "the template is the server's", these(""),
         fix="send `raw` and write the prompt as a template would"),
    Rule("context", (GENERATE,), "nothing is kept of a request", these([]),
         fix="ask `/api/chat`, with the messages before"),
    Rule("images", (GENERATE,), _NO_MEDIA, these([])),
    *(Rule(name, (GENERATE,), _NO_MEDIA) for name in ("width", "height", "steps")),
    Rule("messages[].images", (CHAT,), _NO_MEDIA, these([])),
    Rule("messages[].tool_call_id", (CHAT,), "results belong to calls in their order, by name",
         advice=any_of(str)),
    Rule("messages[].tool_calls[].*", (CHAT,), "a client's own note, which the model is not shown",
         advice=ANYTHING),
    Rule("messages[].tool_calls[].function.*", (CHAT,), "a client's own note", advice=ANYTHING),
    Rule("truncate", (EMBED,), "no text is cut: what does not fit is refused", these(False),
         these(True)),
    Rule("name", (SHOW,), "an older name of `model`", alias="model"),
    *(Rule(name, (SHOW,), "all is told", advice=_SWITCH) for name in ("verbose",)),
    Rule("system", (SHOW,), "nothing is changed", advice=any_of(str)),
)  # fmt: skip


def rules_of(endpoint: str) -> tuple[Rule, ...]:
    """Return the rules for the bodies of one endpoint, by its path."""
    return tuple(rule for rule in TABLE if endpoint in rule.endpoints)

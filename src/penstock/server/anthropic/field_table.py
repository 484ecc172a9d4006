"""Every field that clients of the dialect send and this server does not act on, and whether it is
refused: as ``openai/field_table.py`` for its own."""

from __future__ import annotations

from typing import Any, Literal

from penstock.server.anthropic.paths import COUNT, MESSAGES
from penstock.server.fields.rules import ANYTHING, Rule, any_of, these
from penstock.server.openai.field_table import Effort

_BOTH = (MESSAGES, COUNT)
_TEXT, _WHOLE, _LIST = any_of(str), any_of(int), any_of(list[Any])

_NO_WISH = "only a chat template that reads a variable for it can follow"
_CACHED = (
    "prefixes are found by content and kept while there is room; with `--kv-disk` for the `ttl`, "
    "as `cache_keep_s`"
)
_NO_SERVICE = "the server has no tools, files or containers of its own"
_THINKING = Literal["enabled", "disabled", "adaptive", "between_tools"]

TABLE: tuple[Rule, ...] = (
    *(
        Rule(f"{place}cache_control", _BOTH, _CACHED, advice=ANYTHING)
        for place in (
            "", "system[].", "tools[].", "messages[].content[].",
            "messages[].content[].content[].",
        )
    ),
    *(
        Rule(f"{place}citations", _BOTH, "nothing is cited", these([]), advice=ANYTHING)
        for place in ("system[].", "messages[].content[].", "messages[].content[].content[].")
    ),
    Rule("messages[].content[].is_error", _BOTH, "the model reads what the content says",
         these(False), these(True)),
    Rule("messages[].content[].caller", _BOTH, "calls are the client's to make", advice=ANYTHING),
    Rule("thinking.type", _BOTH, _NO_WISH, advice=any_of(_THINKING), wish=True),
    Rule("thinking.budget_tokens", _BOTH, "`max_tokens` limits reasoning and answer together",
         advice=_WHOLE),
    Rule("thinking.display", _BOTH, "reasoning is returned as it is", these("summarized"), _TEXT),
    Rule("output_config.effort", _BOTH, _NO_WISH, advice=any_of(Effort),
         fix=f"send one of {', '.join(Effort.__args__)}", wish=True),  # type: ignore[attr-defined]
    Rule("service_tier", (MESSAGES,), "all requests are of one tier; see `priority`",
         these("auto", "standard_only"), _TEXT),
    Rule("inference_geo", (MESSAGES,), "there is one place", advice=_TEXT),
    Rule("speed", (MESSAGES,), "there is one", these("standard"), _TEXT),
    Rule("diagnostics", (MESSAGES,), "there are none", advice=ANYTHING),
    *(Rule(name, (MESSAGES,), "callers are told by their keys", advice=_TEXT)
      for name in ("user_profile_id", "workspace_id")),
    Rule("messages[].content[].toolset_name", _BOTH, _NO_SERVICE, advice=_TEXT),
    Rule("container", (MESSAGES,), _NO_SERVICE),
    Rule("mcp_servers", _BOTH, _NO_SERVICE, these([])),
    Rule("context_management", _BOTH, "no prompt is cut", these({}, {"edits": []}),
         fix="send fewer messages"),
    Rule("betas", _BOTH, "what is supported needs no such header", advice=_LIST),
    Rule("tools[].defer_loading", _BOTH, "the model is shown all tools", these(False)),
    Rule("tools[].eager_input_streaming", _BOTH, "arguments are sent as they come",
         these(True), these(False)),
    Rule("tools[].allowed_callers", _BOTH, _NO_SERVICE, these(["direct"])),
    Rule("tools[].input_examples", _BOTH, "chat templates show no examples of calls", these([]),
         _LIST),
)  # fmt: skip


def rules_of(endpoint: str) -> tuple[Rule, ...]:
    """Return the rules for the bodies of one endpoint, by its path."""
    return tuple(rule for rule in TABLE if endpoint in rule.endpoints)

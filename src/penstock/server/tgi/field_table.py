"""Every field that clients of the dialect send and this server does not act on, and whether it is
refused: as ``openai/field_table.py`` for its own."""

from __future__ import annotations

from penstock.server.fields.rules import Rule, any_of, these
from penstock.server.tgi.paths import EITHER, GENERATE, STREAM

_ALL = (GENERATE, STREAM, EITHER)
_SAMPLER = "there is no such step in sampling"

TABLE: tuple[Rule, ...] = (
    Rule("stream", (GENERATE,), "answers here are whole", these(False),
         fix="ask `/generate_stream`, or `/`"),
    Rule("stream", (STREAM,), "answers here are streams", these(True),
         fix="ask `/generate`, or `/`"),
    Rule("parameters.typical_p", _ALL, _SAMPLER, these(1.0)),
    Rule("parameters.watermark", _ALL, _SAMPLER, these(False)),
    Rule("parameters.adapter_id", _ALL, "an adapter is asked for by its name, as `model`"),
    Rule("options.use_cache", _ALL, "the same prompt is computed anew", advice=any_of(bool)),
    Rule("options.wait_for_model", _ALL, "the model is loaded", advice=any_of(bool)),
)  # fmt: skip


def rules_of(endpoint: str) -> tuple[Rule, ...]:
    """Return the rules for the bodies of one endpoint, by its path."""
    return tuple(rule for rule in TABLE if endpoint in rule.endpoints)

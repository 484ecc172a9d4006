"""A checkpoint's ``tokenizer.model`` in the words of GGUF files, which :mod:`gguf_vocab` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import TokenizerError
from penstock.gguf.metadata import GgufValue
from penstock.gguf.special_tokens import Kind
from penstock.tokenizer.sentencepiece_model import SentencePieceModel

_ROLES: Final = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "pad": "padding",
}
"""Special tokens by role, and what keys call them."""
_MOST_TOKENS: Final = 1 << 22


def described_sentencepiece(
    model: SentencePieceModel,
    added: Mapping[int, tuple[str, bool]],
    special: Mapping[str, str],
    config: Mapping[str, Any],
) -> dict[str, GgufValue]:
    """``tokenizer.ggml.*`` of the pieces and the tokens ``added`` to them, by id: their text, and
    whether they are special. ``special`` has texts by role, ``bos_token`` and others; ``config`` is
    tokenizer_config.json.

    An id that neither has gets a name that no text becomes. Raises TokenizerError for a special
    token that is neither.
    """
    tokens, scores = list(model.pieces), list(model.scores)
    kinds = list(model.kinds)
    count = max([len(tokens), *(token + 1 for token in added)])
    if min(added, default=0) < 0 or count > _MOST_TOKENS:
        wrong = max(added) if min(added) >= 0 else min(added)
        raise TokenizerError(
            f"tokenizer_config.json or added_tokens.json adds a token with the id {wrong}, which "
            "no vocabulary has"
        )
    for token in range(len(tokens), count):
        tokens.append(f"[PAD{token}]")
        scores.append(0.0)
        kinds.append(int(Kind.UNUSED))
    for token, (text, is_special) in added.items():
        tokens[token] = text
        if kinds[token] not in (Kind.CONTROL, Kind.UNKNOWN):
            kinds[token] = int(Kind.CONTROL if is_special else Kind.USER_DEFINED)
    values: dict[str, GgufValue] = {
        "model": "llama",
        "tokens": list(tokens),
        "scores": list(scores),
        "token_type": list(kinds),
        "add_space_prefix": _flag(config, "add_prefix_space", model.space_prefix),
    }
    ids = {text: token for token, text in enumerate(tokens)}
    for role, name in _ROLES.items():
        named = special.get(f"{role}_token")
        if named is not None and named not in ids:
            raise TokenizerError(
                f"tokenizer_config.json names the special token {named!r}, which tokenizer.model "
                "lacks"
            )
        found = model.roles.get(role) if named is None else ids[named]
        if found is not None:
            values[f"{name}_token_id"] = found
    values["add_bos_token"] = _flag(config, "add_bos_token", "bos_token_id" in values)
    values["add_eos_token"] = _flag(config, "add_eos_token", False)
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def _flag(config: Mapping[str, Any], name: str, usual: bool) -> bool:
    value = config.get(name)
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise TokenizerError(f"{name} in tokenizer_config.json is {value!r}, and no true or false")
    return value

"""Whether a chat template has a place for the system's message."""

from __future__ import annotations

from penstock.errors import RequestError, TokenizerError
from penstock.tokenizer.chat import ChatTemplate

_PROBE = "a system message of a probe"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


def has_system_role(source: str) -> bool:
    """Render a system's message before a user's. False where the template refuses it, leaves it
    out or is not valid."""
    messages = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "Hello."}]
    try:
        return _PROBE in ChatTemplate(source, dict.fromkeys(_TOKENS, "")).render(messages)
    except (RequestError, TokenizerError):
        return False

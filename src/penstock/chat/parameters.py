"""The sampling options that a conversation asks for."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import RequestError, shown
from penstock.json_text import decoded
from penstock.sampling.params import SamplingParams


class ChatParameters(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The options of :class:`~penstock.sampling.params.SamplingParams` that suit a conversation.

    None is what the person has not set; :class:`~penstock.chat.used_sampling.UsedSampling` says
    what holds then.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    ignore_eos: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set, by name."""
        fields = self.__struct_fields__
        return {name: v for name in fields if (v := getattr(self, name)) is not None}

    def check(self) -> None:
        """Raise RequestError naming the first option that is out of range."""
        SamplingParams(**self.given).validate()

    def with_text(self, name: str, text: str) -> ChatParameters:
        """These options with one replaced by what a person wrote; ``default`` unsets it.

        ``stop`` is one text, or a JSON array of several. Raises RequestError for a name that is
        not known and a value that is not allowed.
        """
        name = name.replace("-", "_")
        if name not in self.__struct_fields__:
            raise RequestError(
                f"there is no parameter {name!r}; there are {', '.join(self.__struct_fields__)}",
                name,
            )
        value = None if text == "default" else _read(name, text)
        changed = msgspec.structs.replace(self, **{name: value})
        changed.check()
        return changed


def _read(name: str, text: str) -> object:
    kind = ChatParameters.__annotations__[name]
    if name == "stop":
        if not text.startswith("["):
            return (text,)
        try:
            return decoded(text, tuple[str, ...])
        except ValueError as error:
            raise RequestError(f"stop is a text, or a JSON array of texts: {error}", name) from None
    if "bool" in kind:
        if text not in ("true", "false"):
            raise RequestError(f"{name} must be true or false, not {shown(text)}", name)
        return text == "true"
    number = int if "int" in kind else float
    try:
        return number(text)
    except ValueError:
        what = "an integer" if number is int else "a number"
        raise RequestError(f"{name} must be {what}, not {shown(text)}", name) from None

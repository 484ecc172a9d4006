"""A request of a client: what is passed on, and what the router reads of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.router.exchange import Headers
from penstock.router.reading import read

_NONE = msgspec.Raw(b"")


class Body(msgspec.Struct):
    """What the router reads of a JSON object, each field as it is written, or nothing.

    What is of another type than it should be is for a replica to say something about, and the rest
    is read all the same. The fields are those of all dialects: one name has one meaning in those
    that have it.
    """

    model: msgspec.Raw = _NONE
    name: msgspec.Raw = _NONE
    stream: msgspec.Raw = _NONE
    seed: msgspec.Raw = _NONE
    random_seed: msgspec.Raw = _NONE
    options: msgspec.Raw = _NONE
    parameters: msgspec.Raw = _NONE
    sampling_parameters: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    inputs: msgspec.Raw = _NONE
    text_input: msgspec.Raw = _NONE
    input_extra: msgspec.Raw = _NONE
    input_prefix: msgspec.Raw = _NONE
    input_suffix: msgspec.Raw = _NONE
    suffix: msgspec.Raw = _NONE
    cache_salt: msgspec.Raw = _NONE
    prompt_cache_key: msgspec.Raw = _NONE
    safety_identifier: msgspec.Raw = _NONE
    user: msgspec.Raw = _NONE

    @classmethod
    def of(cls, data: bytes) -> Body | None:
        """None for what is no JSON object."""
        return read(data, cls)

    @property
    def session(self) -> str | None:
        """What the client names the conversation by, or the user."""
        names = (self.prompt_cache_key, self.safety_identifier, self.user)
        return next((text for name in names if (text := text_of(name)) is not None), None)

    @property
    def prompt_parts(self) -> tuple[msgspec.Raw, ...]:
        """What its prompt is made of, in the order in which templates write it."""
        texts = self.instructions, self.system, self.prompt, self.messages, self.input, self.suffix
        gap = self.input_extra, self.input_prefix, self.input_suffix
        return self.tools, *texts, self.inputs, self.text_input, *gap


def text_of(raw: msgspec.Raw) -> str | None:
    """The text that JSON holds; None for anything else."""
    return read(raw, str)


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    target: str
    """Path and query as they came, with what is escaped in them."""
    headers: Headers
    data: bytes
    body: Body | None
    """None for what is no object of JSON."""
    model: str | None
    """The model that it is for; None where it names none."""
    session: str | None

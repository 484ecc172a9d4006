"""Who answers: a model in this process, or one behind a URL."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import msgspec

from penstock.chat.conversation import Conversation
from penstock.sampling.defaults import SamplingDefaults


class Usage(msgspec.Struct, frozen=True):
    """What an answer has cost."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Tokens of the prompt that were found in the prefix cache."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of an answer. Its last one has ``finish_reason``."""

    content: str = ""
    reasoning_content: str = ""
    finish_reason: str | None = None
    """As OpenAI's API has it: ``stop``, or ``length`` where tokens ran out."""
    usage: Usage | None = None
    """So far; with the last delta at the latest, where it is known at all."""


class ChatModel(Protocol):
    """A model that answers conversations, one at a time."""

    interruptible: bool
    """Whether KeyboardInterrupt may be raised anywhere within :meth:`stream`."""

    @property
    def chat_template_kwargs(self) -> tuple[str, ...] | None:
        """The variables that the chat template reads and a conversation may set; None where a
        server does not say."""

    @property
    def sampling_defaults(self) -> SamplingDefaults | None:
        """What the model's makers recommend; None where a server does not say."""

    @property
    def context_tokens(self) -> int | None:
        """How many tokens prompt and answer may have; None where a server does not say."""

    @property
    def name(self) -> str:
        """What a person knows the model by."""

    def describe(self) -> str:
        """One line about the model and where it runs."""

    def stream(self, conversation: Conversation) -> Generator[Delta, None, None]:
        """Answer the last message, which is the user's. Closing the generator stops the answer.

        Raises PenstockError if the conversation cannot be answered.
        """

    def close(self) -> None:
        """Release what the model holds."""

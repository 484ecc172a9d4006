"""What an answer of ``/v1/completions`` says, streamed or whole, in a form that can be compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Choice:
    text: str = ""
    finish_reason: str | None = None
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the chosen tokens, as they were written: equal only if every bit is."""
    tokens: list[str] = field(default_factory=list)

    def begins(self, whole: Choice) -> bool:
        """Whether this could have gone on to become ``whole``."""
        return (
            whole.text.startswith(self.text)
            and whole.tokens[: len(self.tokens)] == self.tokens
            and whole.logprobs[: len(self.logprobs)] == self.logprobs
        )

    def add(self, part: dict[str, Any]) -> None:
        self.text += part["text"]
        self.finish_reason = part["finish_reason"] or self.finish_reason
        if part["logprobs"] is not None:
            self.logprobs += part["logprobs"]["token_logprobs"]
            self.tokens += part["logprobs"]["tokens"]


@dataclass
class Answer:
    choices: dict[int, Choice] = field(default_factory=dict)
    completion_tokens: int | None = None
    error: str | None = None
    """The code of the error that ended it."""
    done: bool = False
    """Whether it is complete: a stream up to its ``[DONE]``."""

    def begins(self, whole: Answer) -> bool:
        """Whether what there is of each choice is how that of ``whole`` begins."""
        return all(
            index in whole.choices and choice.begins(whole.choices[index])
            for index, choice in self.choices.items()
        )

    def take(self, event: bytes) -> None:
        """Add what one server-sent event says. Raises ValueError for what is none of ours."""
        data = event.removeprefix(b"data: ")
        if data == event or self.done:
            raise ValueError(f"no event of a stream: {event[:200]!r}")
        if data == b"[DONE]":
            self.done = True
            return
        self._take(json.loads(data))

    def take_whole(self, body: bytes) -> None:
        """Add an answer that was not streamed."""
        self._take(json.loads(body))
        self.done = self.error is None

    def _take(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self.error = str(said["error"]["code"])
            return
        for part in said["choices"]:
            self.choices.setdefault(part["index"], Choice()).add(part)
        if said.get("usage") is not None:
            self.completion_tokens = said["usage"]["completion_tokens"]

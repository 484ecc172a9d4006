"""The text of a sequence, cut at its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.frontend.outputs import CompletionOutput, PositionLogprobs
from penstock.server.openai.answer_structs import likeliest
from penstock.server.tgi.protocol import GeneratedToken
from penstock.tokenizer import Tokenizer

ToldToken = tuple[GeneratedToken, list[GeneratedToken]]
"""A token, and the most likely ones at its place."""


class TokenTexts:
    """Tells the tokens of one sequence as they come.

    The texts of those that are not special are, together, the text of the sequence.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], top: int) -> None:
        """``top`` is how many likely tokens are told at each place."""
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer(prompt_token_ids=prompt)
        self._top = top
        self._before: CompletionOutput | None = None
        self._chars = 0
        """Characters of the texts so far."""

    def take(self, choice: CompletionOutput) -> Iterator[ToldToken]:
        """The tokens since the last call. ``choice`` has log-probabilities."""
        new = choice.since(self._before)
        self._before = choice
        assert new.logprobs is not None
        for i, (token, position) in enumerate(zip(new.token_ids, new.logprobs, strict=True), 1):
            special = token in self._tokenizer.special_ids
            if special:
                text = self._tokenizer.token_text(token)
            elif choice.finish_reason is not None and i == len(new.token_ids):
                # It may end with part of a character, and the text of a stop before its last token.
                text = choice.text[self._chars :]
            else:
                text = self._detokenizer.push((token,))
            self._chars += 0 if special else len(text)
            yield (
                GeneratedToken(
                    id=token, text=text, logprob=position[token].logprob, special=special
                ),
                self._likeliest(position),
            )

    def _likeliest(self, position: PositionLogprobs) -> list[GeneratedToken]:
        return [
            GeneratedToken(
                id=token,
                text=entry.decoded_token or "",
                logprob=entry.logprob,
                special=token in self._tokenizer.special_ids,
            )
            for token, entry in likeliest(position, self._top)
        ]

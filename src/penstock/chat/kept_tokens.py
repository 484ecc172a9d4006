"""The token ids of a conversation that is rendered anew for every turn."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.tokenizer import Tokenizer
from penstock.tokenizer.chat_tokens import special_names


class KeptTokens:
    """Tokenizes the rendered prompts of one conversation, turn by turn.

    A model may spell its answer in other tokens than the tokenizer would, and the prefix cache
    knows the answer by those. So where a prompt begins with the one before and what was generated
    behind it, these keep their ids, and the rest alone is tokenized. The ids always spell the very
    text of the prompt: an answer that the template cut, changed or left out keeps none.

    What is kept ends where the text has a special token's name: there a text is cut before it is
    tokenized, so what stands behind has the ids that it would have in the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = special_names(tokenizer)
        self._prompt = ""
        self._prompt_ids: list[int] = []
        self._generated: list[int] = []

    def encode(self, prompt: str) -> list[int]:
        """The token ids of a turn's prompt. Raises as :meth:`Tokenizer.encode` does."""
        kept, rest = self._kept(prompt)
        ids = kept + self._tokenizer.encode(rest, False)
        self._prompt, self._prompt_ids, self._generated = prompt, ids, []
        return ids

    def generated(self, token_ids: Sequence[int]) -> None:
        """Take note of more tokens that were generated behind the last prompt."""
        self._generated += token_ids

    def _kept(self, prompt: str) -> tuple[list[int], str]:
        """The ids that a prompt keeps, and the text behind them."""
        if self._generated and prompt.startswith(self._prompt) and self._special is not None:
            end = self._special.search(prompt, len(self._prompt))
            if end is not None:
                count = self._spelling(prompt[len(self._prompt) : end.start()].encode())
                if count:
                    return [*self._prompt_ids, *self._generated[:count]], prompt[end.start() :]
        return [], prompt

    def _spelling(self, said: bytes) -> int:
        """How many of the generated tokens, from the first on, spell just this; 0 if none do."""
        pieces, special, at = self._tokenizer.pieces, self._tokenizer.special_ids, 0
        for count, token in enumerate(self._generated):
            if at == len(said):
                return count
            piece = pieces[token]
            if token in special or not piece or not said.startswith(piece, at):
                return 0
            at += len(piece)
        return len(self._generated) if at == len(said) else 0

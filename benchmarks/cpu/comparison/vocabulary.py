"""A byte-level BPE vocabulary of any size, made up of letters, for checkpoints without one.

Every token but the single bytes and the special ones is a word of lowercase letters, so any
sequence of them decodes to plain ASCII: no engine holds text back because it waits for the rest
of a UTF-8 character, and a streamed token is a streamed character.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

NUM_BYTES = 256


@dataclass(frozen=True)
class Vocabulary:
    """``tokens[i]`` is the text of id ``i``; ``merges`` builds every word from its prefix."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    bos_token_id: int
    eos_token_id: int

    @property
    def first_word(self) -> int:
        """The first id that is a word; words go up to the first special token."""
        return NUM_BYTES

    @property
    def last_word(self) -> int:
        """One past the last id of the unbroken run of words."""
        return min(self.bos_token_id, self.eos_token_id)


def build_vocabulary(size: int, bos_token_id: int, eos_token_id: int) -> Vocabulary:
    """A vocabulary of ``size`` ids with its special tokens where a config puts them.

    Raises ValueError if ids do not fit or there are not enough words of five letters.
    """
    if size < NUM_BYTES + 2:
        raise ValueError(
            f"its vocabulary has {size} tokens, and one for each byte and two special ones are "
            f"{NUM_BYTES + 2}"
        )
    special = {bos_token_id: "<|begin_of_text|>", eos_token_id: "<|end_of_text|>"}
    if len(special) != 2 or not all(NUM_BYTES <= i < size for i in special):
        raise ValueError(
            f"the special tokens {bos_token_id} and {eos_token_id} must differ and lie in "
            f"[{NUM_BYTES}, {size})"
        )
    words = _words()
    tokens = sorted(ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for token_id in range(NUM_BYTES, size):
        if token_id in special:
            tokens.append(special[token_id])
            continue
        word = next(words, None)
        if word is None:
            raise ValueError(f"{size} tokens are more than there are words of five letters")
        tokens.append(word)
        merges.append((word[:-1], word[-1]))
    return Vocabulary(tuple(tokens), tuple(merges), bos_token_id, eos_token_id)


def _words() -> Iterator[str]:
    for length in range(2, 6):
        for letters in itertools.product(ascii_lowercase, repeat=length):
            yield "".join(letters)


def write_tokenizer(vocabulary: Vocabulary, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json as transformers reads."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=list(vocabulary.merges)))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    bos, eos = (vocabulary.tokens[i] for i in (vocabulary.bos_token_id, vocabulary.eos_token_id))
    tokenizer.add_special_tokens([AddedToken(bos, special=True), AddedToken(eos, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    generation = {
        "bos_token_id": vocabulary.bos_token_id,
        "eos_token_id": vocabulary.eos_token_id,
        "do_sample": False,
    }
    _write_json(folder / "generation_config.json", generation)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

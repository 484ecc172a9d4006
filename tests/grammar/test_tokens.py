"""Vocabularies of several spellings: what masks allow is what a client sees."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.grammars import choice
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from penstock.grammar.compile import compile_grammar
from penstock.grammar.tokens import Vocabulary
from penstock.interface.mask import allowed, mask_of
from penstock.tokenizer import Tokenizer as PenstockTokenizer
from penstock.tokenizer import TokenizerSettings
from penstock.tokenizer.codec import LibraryCodec

TEXTS = ("a bc", "é b", "cab ca\nb", "🎉 a")


def sentencepiece(replace: bool) -> Tokenizer:
    """Spaces are U+2581, other bytes <0x..>; as Llama 2 spells them, or as Metaspace does."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", "a", "b", "c", "▁a", "bc", "é", "ab", "▁b"]
    vocab = {name: i for i, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    if replace:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    made.add_special_tokens([AddedToken(n, special=True) for n in ("<unk>", "<s>", "</s>")])
    made.add_tokens([AddedToken("<think>", special=False)])
    return made


@pytest.mark.parametrize("replace", [True, False])
def test_what_masks_spell_is_what_the_detokenizer_shows(replace: bool) -> None:
    tokenizer = PenstockTokenizer(
        LibraryCodec(sentencepiece(replace)), TokenizerSettings(eos_token_ids=(2,))
    )
    vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size + 7, (2,))
    texts = (*TEXTS, "<think> b")
    grammar = compile_grammar(choice(*texts).spec, vocabulary)
    prompt = tokenizer.encode("a")
    seen, spelled = set(), set()
    for seed in range(60):
        rng, matcher, tokens = random.Random(seed), grammar.start(frozenset((2,))), []
        while True:
            options = np.flatnonzero(allowed(matcher.mask, vocabulary.vocab_size)).tolist()
            token = rng.choice(options)
            if token == 2:
                break
            tokens.append(token)
            if matcher.advance(token):
                break
        detokenizer = tokenizer.detokenizer(prompt_token_ids=prompt)
        text = detokenizer.push(tokens) + detokenizer.flush()
        assert text in texts
        seen.add(text)
        spelled.add(tuple(tokens))
    assert seen == set(texts)
    assert len(spelled) > 2 * len(texts), "texts are spelled in several ways"


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
def test_a_mask_holds_a_bit_a_token(size: int) -> None:
    tokens = np.random.default_rng(size).random(size) < 0.5
    mask = mask_of(tokens)
    assert len(mask) == -(-size // 32)
    assert [bool(mask[i // 32] >> np.uint32(i % 32) & 1) for i in range(size)] == tokens.tolist()
    assert sum(int(word).bit_count() for word in mask) == tokens.sum()
    assert allowed(mask, size).tolist() == tokens.tolist()

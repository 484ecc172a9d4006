"""Which ids of a conversation's tokens stay from turn to turn."""

from __future__ import annotations

import pytest

from penstock.chat.kept_tokens import KeptTokens
from penstock.demo_model import demo_model_path
from penstock.tokenizer import Tokenizer
from penstock.tokenizer.load import load_tokenizer

PROMPT = "<|user|>Who?<|assistant|>"
MORE = "<|user|>And é?<|assistant|>"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(demo_model_path())


def spelled(tokenizer: Tokenizer, *texts: str | bytes) -> list[int]:
    """The single tokens with these texts or bytes, which the tokenizer would join."""
    pieces = {tokenizer.pieces[i]: i for i in range(tokenizer.vocab_size)}
    return [pieces[text.encode() if isinstance(text, str) else text] for text in texts]


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_what_was_generated_keeps_its_ids(tokenizer: Tokenizer) -> None:
    kept, answer = KeptTokens(tokenizer), spelled(tokenizer, "r", "e", "t", "u", "r", "n")
    first = kept.encode(PROMPT)
    assert first == tokenizer.encode(PROMPT, False)
    kept.generated(answer[:4])
    kept.generated([*answer[4:], tokenizer.eos_token_ids[0]])
    text = PROMPT + "return" + MORE
    second = kept.encode(text)
    assert second == first + answer + tokenizer.encode(MORE, False)
    assert second != tokenizer.encode(text, False)
    kept.generated(answer)
    third = kept.encode(text + "return" + MORE)
    assert third == second + answer + tokenizer.encode(MORE, False)
    assert text_of(tokenizer, third) == text + "return" + MORE


def test_what_a_template_trims_at_the_end_is_left_out(tokenizer: Tokenizer) -> None:
    kept, answer = KeptTokens(tokenizer), spelled(tokenizer, "i", "f", "\n")
    first = kept.encode(PROMPT)
    kept.generated(answer)
    assert kept.encode(PROMPT + "if" + MORE) == first + answer[:2] + tokenizer.encode(MORE, False)


@pytest.mark.parametrize(
    ("generated", "prompt"),
    [
        (("i", "f"), PROMPT + "If" + MORE),  # another text
        (("i", "f"), "<|system|>" + PROMPT + "if" + MORE),  # another beginning
        (("i", "f"), PROMPT + "if and more"),  # no border to cut at
        (("return", "i"), PROMPT + "ret" + MORE),  # cut within a token
        (("i", b"\xc3"), PROMPT + "i\N{REPLACEMENT CHARACTER}" + MORE),  # cut within a character
        (("i", "<|system|>", "f"), PROMPT + "if" + MORE),  # a token that the text does not show
        (("i",), PROMPT + MORE),  # an answer that was left out
    ],
)
def test_a_prompt_is_always_spelled_as_it_is(
    tokenizer: Tokenizer, generated: tuple[str | bytes, ...], prompt: str
) -> None:
    kept = KeptTokens(tokenizer)
    kept.encode(PROMPT)
    kept.generated(spelled(tokenizer, *generated))
    assert kept.encode(prompt) == tokenizer.encode(prompt, False)

"""Which tokens of a GGUF file end a text, and by what they are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.gguf.arrays import Numbers
from penstock.gguf.special_tokens import END_NAMES, SpecialTokens, end_token_ids

NORMAL, CONTROL, USER = 1, 3, 4


@pytest.mark.parametrize("name", sorted(END_NAMES))
def test_every_name_of_an_end(name: str) -> None:
    special = SpecialTokens.read(["a", name], [1, 1], None, ())
    assert (special.ends, special.control) == ((1,), (1,))


def test_names_that_end_only_sometimes() -> None:
    def ends(*names: str, kind: int = CONTROL) -> tuple[int, ...]:
        return SpecialTokens.read(names, [kind] * len(names), None, ()).ends

    assert ends("<|end|>") == (0,)
    assert ends("<|end|>", "<|return|>", "<|call|>") == (1, 2)
    assert ends("<|end|>", "<|calls|>", "<|flush|>") == (1, 2)
    assert ends("</s>") == (0,)
    assert ends("</s>", kind=USER) == ()  # of HTML
    assert ends("</s>", kind=NORMAL) == ()


def test_ends_of_a_file() -> None:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.tokens": ["a", "<end>", "<turn>", "<|im_end|>", "</s>"],
        "tokenizer.ggml.token_type": Numbers(np.array([1, 3, 3, 1, 3], np.int32)),
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.ggml.eom_token_id": 99,
    }
    assert end_token_ids(metadata) == (2, 1, 3, 4)
    assert end_token_ids({}) == ()
    assert end_token_ids({"tokenizer.ggml.tokens": 3, "tokenizer.ggml.eos_token_id": 0}) == ()

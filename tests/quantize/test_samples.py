"""Windows of a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.quantize.samples import draw, training_text

TOKENIZER: Any = SimpleNamespace(
    settings=SimpleNamespace(prefix_ids=(1,)), encode=lambda text, **options: list(map(ord, text))
)


def test_a_sample_has_some_of_the_text() -> None:
    with pytest.raises(ConfigError, match="begins with 1 tokens that the model expects first"):
        draw(TOKENIZER, "some text", "FILE", 4, 1, 0, 256)
    with pytest.raises(ConfigError, match="begins with 1 tokens that the model expects first"):
        training_text(TOKENIZER, "some text", "FILE", 1, 0, 256)
    assert all(
        len(each) == 2 and each[0] == 1 for each in draw(TOKENIZER, "ab", "", 4, 2, 0, 9).tokens
    )

"""Marks that are special tokens, and prompts that end with one."""

from __future__ import annotations

from pathlib import Path

from support import byte_tokenizer

from penstock.parsing.marks import has_special_marks, opened
from penstock.parsing.styles import REASONING_STYLES, TOOL_STYLES, ReasoningStyle
from penstock.tokenizer import load_tokenizer

THINK = REASONING_STYLES[0]
(JSON,) = (style for style in TOOL_STYLES if style.name == "json")


def test_marks_that_are_special_tokens_and_prompts_that_open_the_reasoning(
    tmp_path: Path,
) -> None:
    tokenizer = load_tokenizer(byte_tokenizer.write(tmp_path))
    special = ReasoningStyle("special", "<|im_start|>", "<|im_end|>")
    assert has_special_marks(tokenizer, special, None)
    assert not has_special_marks(tokenizer, THINK, JSON)
    for text, inside in (
        ("Hi.<think>", True),
        ("Hi.<think>\n\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("think>", False),
        ("", False),
    ):
        assert opened(tokenizer, tokenizer.encode(text), THINK) is inside
    assert opened(tokenizer, tokenizer.encode("a<|im_start|>"), special)

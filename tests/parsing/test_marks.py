"""Marks that are special tokens, and prompts that end with one."""

from __future__ import annotations

from pathlib import Path

from support import byte_tokenizer

from penstock.parsing.known_styles import REASONING_STYLES, TOOL_STYLES
from penstock.parsing.marks import has_special_marks, start_behind
from penstock.parsing.style import ReasoningStyle, Start
from penstock.tokenizer import load_tokenizer

(THINK,) = (style for style in REASONING_STYLES if style.name == "think")
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
        start = Start.REASONING if inside else Start.BEGINNING
        assert start_behind(tokenizer, tokenizer.encode(text), THINK) is start
    prompt = tokenizer.encode("a<|im_start|>")
    assert start_behind(tokenizer, prompt, special) is Start.REASONING

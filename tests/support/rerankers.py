"""Tiny checkpoints of rerankers that answer no or yes, with the words and marks that these need."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from support.checkpoints import tiny_checkpoint

WORDS = ("no", "yes", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
FIRST_WORD = 259
NO, YES = FIRST_WORD, FIRST_WORD + 1
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
OWN_TEMPLATE = (
    '{%- set query = messages | selectattr("role", "eq", "query") | first -%}'
    '{%- set document = messages | selectattr("role", "eq", "document") | first -%}'
    '{%- set asked = messages | selectattr("role", "eq", "system") | map(attribute="content")'
    ' | first | default("Judge.") -%}'
    "{{ asked }} Q: {{ query.content }} D: {{ document.content }} A:"
)
"""A template of pairs as sentence-transformers and vLLM have them."""


def published_prompt(query: str, document: str, instruction: str = INSTRUCTION) -> str:
    """What Qwen3-Reranker's model card has its users write."""
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        f"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def reranker(folder: Path, family: str = "qwen3", **fields: Any) -> Path:
    """Copy a tiny language model to ``folder``, whose vocabulary has the words."""
    shutil.copytree(tiny_checkpoint(family, max_position_embeddings=1024, **fields), folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for i, word in enumerate(WORDS):
        tokenizer["added_tokens"].append(
            {
                **{"id": FIRST_WORD + i, "content": word, "special": word.startswith("<|")},
                **{"single_word": False, "lstrip": False, "rstrip": False, "normalized": False},
            }
        )
    path.write_text(json.dumps(tokenizer))
    return folder


def change(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file; those that are None are removed."""
    content = json.loads(path.read_text())
    content |= fields
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

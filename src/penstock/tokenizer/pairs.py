"""How a query and a document become the one prompt that a model judges.

A template that was made for pairs finds their texts in messages of the roles ``query`` and
``document``, and an instruction in one of the role ``system``: the convention of vLLM and
sentence-transformers. Without one, the two texts stand side by side, with what the tokenizer puts
between two texts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from penstock.errors import RequestError
from penstock.tokenizer.chat_sandbox import TemplateEnvironment
from penstock.tokenizer.chat_tokens import tokenize_chat
from penstock.tokenizer.tokenizer import Tokenizer

_ASKS: Final = [
    re.compile(rf"""(?:==\s*|["']eq["']\s*,\s*|["']equalto["']\s*,\s*)["']{role}["']""")
    for role in ("query", "document")
]

QWEN3_RERANKER: Final = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    "<Instruct>: {{ instruction | default('Given a web search query, retrieve relevant passages "
    "that answer the query', true) }}\n"
    "<Query>: {{ messages[-2].content }}\n"
    "<Document>: {{ messages[-1].content }}<|im_end|>\n"
    "<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n"
    "{{ '' }}"  # or Jinja would take the last line's end
)
"""The prompt that Qwen3-Reranker was trained on; its first checkpoints have no template of it."""
_ITS_MARKS: Final = ("<|im_start|>", "<|im_end|>", "<think>")
_RERANK: Final = "rerank"
"""The name of the template of pairs in GGUF files: a text, and no Jinja."""
_PLACES: Final = {
    "{query}": "{{ messages[-2].content }}",
    "{document}": "{{ messages[-1].content }}",
}
"""What stands in it where the two texts come, and what does in a template of Jinja."""
_FIXED: Final = "{# without an instruction #}"


def shows_pairs(template: str) -> bool:
    """Whether a chat template has places for a query and a document."""
    return all(asks.search(template) for asks in _ASKS)


def pair_template(tokenizer: Tokenizer, labels: Collection[str]) -> str | None:
    """The template of pairs for a model of these labels: the tokenizer's own, if it is one, the one
    for reranking that GGUF files have, or that of a model which answers no or yes in Qwen3's
    vocabulary; else None."""
    templates = tokenizer.settings.chat_templates
    own = templates.get("default")
    if own is not None and shows_pairs(own):
        return own
    named = templates.get(_RERANK)
    if named is not None and all(place in named for place in _PLACES):
        return QWEN3_RERANKER if named == _filled(QWEN3_RERANKER) else _with_places(named)
    marks = all(tokenizer.token_id(mark) is not None for mark in _ITS_MARKS)
    return QWEN3_RERANKER if marks and sorted(labels) == ["no", "yes"] else None


def _filled(template: str) -> str:
    """A template of this module as llama.cpp's files have it: with the usual instruction, and names
    where the two texts come."""
    query, document = _PLACES
    messages = pair_messages(query, document, None)
    return TemplateEnvironment().from_string(template).render(messages=messages)


def _with_places(text: str) -> str:
    """The template of a text with names where the two texts come. It has no place for an
    instruction."""
    pieces = re.split(f"({'|'.join(map(re.escape, _PLACES))})", text)
    return _FIXED + "".join(
        _PLACES.get(piece) or f"{{{{ {piece!r} }}}}" for piece in pieces if piece
    )


def pair_messages(query: str, document: str, instruction: str | None) -> list[dict[str, Any]]:
    """The messages that a template of pairs is given."""
    asked = [] if instruction is None else [{"role": "system", "content": instruction}]
    return [
        *asked,
        {"role": "query", "content": query},
        {"role": "document", "content": document},
    ]


def pair_variables(instruction: str | None) -> dict[str, Any]:
    """The variables that it is given besides."""
    return {} if instruction is None else {"instruction": instruction}


def check_instruction(instruction: str | None, template: str | None) -> None:
    """Raise RequestError for an instruction where there is no template of pairs."""
    if instruction is not None and (template is None or template.startswith(_FIXED)):
        raise RequestError(
            "this model has no template of pairs that an instruction would be put into: leave it "
            "out, or serve the model with --chat-template FILE",
            "instruction",
        )


def side_by_side(tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The tokens of two texts, which were encoded without special tokens, as a pair."""
    known = tokenizer.settings
    return [*known.prefix_ids, *first, *known.between_ids, *second, *known.suffix_ids]


def tokenize_pair(
    tokenizer: Tokenizer, template: str | None, query: str, document: str, instruction: str | None
) -> list[int]:
    """The prompt of a pair. ``template``: what :func:`pair_template` gives. Names of special tokens
    in the texts are text."""
    check_instruction(instruction, template)
    if template is None:
        one, other = (tokenizer.encode(text, False, False) for text in (query, document))
        return side_by_side(tokenizer, one, other)
    if template != tokenizer.settings.chat_templates.get("default"):
        tokenizer = tokenizer.with_chat_template(template)
    messages = pair_messages(query, document, instruction)
    return tokenize_chat(tokenizer, messages, True, pair_variables(instruction), False)

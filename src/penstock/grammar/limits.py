"""How much work a grammar may make.

llguidance bounds most of it by counts, so that what it gives up on does not depend on the machine,
and it never fetches anything. What it does not bound is how long it looks for a text that satisfies
several patterns at once, and how deep it recurses: grammars are checked in worker processes
(:mod:`penstock.sandbox`), which have limits of time, memory and stack.
"""

from __future__ import annotations

from llguidance import LLMatcher, LLParserLimits


def parser_limits() -> LLParserLimits:
    # A state of the lexer takes 1 to 2 kB, and every sequence may come to its own. Four items a
    # property of an object, one a choice; what they cost is bounded by matcher.MOST_SECONDS.
    return LLParserLimits(max_lexer_states=20_000, max_items_in_row=20_000, verbose_errors=False)


def fault(lark: str) -> str | None:
    """Why the grammar cannot be compiled, if it cannot be. Tokens that it names are not known."""
    failed, messages = LLMatcher.validate_grammar_with_warnings(lark, limits=parser_limits())
    return messages[0] if failed else None

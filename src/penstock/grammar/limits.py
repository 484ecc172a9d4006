"""How much work a grammar may make.

llguidance bounds most of it by counts, so that what it gives up on does not depend on the machine,
and it never fetches anything. What it does not bound is how long it looks for a text that satisfies
several patterns at once. Grammars that could ask for that are first tried in a process that the
system ends after ``TRIAL_SECONDS`` of processor time.

This file is also that process: it is run by its path, so that nothing but llguidance is imported.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys

from llguidance import LLMatcher, LLParserLimits

TRIAL_SECONDS = 3
_TRIAL_BYTES = 2 << 30
"""Of address space; half of it goes to libraries and stacks of threads."""
_TRIAL_WALL_SECONDS = 120.0
"""On a machine so busy that the trial gets no processor."""

_INTERSECTS = re.compile(r'"pattern|"format"|"multipleOf"|"not"|[&~]')


def parser_limits() -> LLParserLimits:
    # A state of the lexer takes 1 to 2 kB, and every sequence may come to its own. Four items a
    # property of an object, one a choice; what they cost is bounded by matcher.MOST_SECONDS.
    return LLParserLimits(max_lexer_states=20_000, max_items_in_row=20_000, verbose_errors=False)


def fault(lark: str) -> str | None:
    """Why the grammar cannot be compiled, if it cannot be. Tokens that it names are not known."""
    failed, messages = LLMatcher.validate_grammar_with_warnings(lark, limits=parser_limits())
    return messages[0] if failed else None


def bounded_fault(lark: str) -> str | None:
    """As :func:`fault`, in bounded time."""
    return _trial(lark) if _INTERSECTS.search(lark) else fault(lark)


def try_first(lark: str) -> str | None:
    """What a trial finds where one is needed: then compiling takes bounded time."""
    return _trial(lark) if _INTERSECTS.search(lark) else None


def _trial(lark: str) -> str | None:
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            input=lark.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TRIAL_WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "compiling it takes too long; simplify its patterns"
    if done.returncode == 0:
        return done.stdout.decode() or None
    return (
        f"compiling it takes more than {TRIAL_SECONDS} s of processor time, or too much memory; "
        "combine fewer patterns, formats and lengths"
    )


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_TRIAL_BYTES, _TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_SECONDS, TRIAL_SECONDS))
    sys.stdout.write(fault(sys.stdin.buffer.read().decode()) or "")


if __name__ == "__main__":
    _main()

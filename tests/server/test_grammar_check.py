"""Grammars are looked at once, beside the event loop, and not without end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from penstock.errors import OverloadedError, RequestError
from penstock.grammar import compile as compiling
from penstock.grammar.spec import GrammarSpec
from penstock.server.grammar_check import MAX_WAITING, GrammarCheck

GOOD, BAD = GrammarSpec(kind="regex", text="a+"), GrammarSpec(kind="regex", text="(")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[GrammarSpec]:
    """How often each grammar was."""
    counts: Counter[GrammarSpec] = Counter()
    check = compiling.check

    def counted(spec: GrammarSpec, param: str = "grammar") -> None:
        counts[spec] += 1
        check(spec, param)

    monkeypatch.setattr(compiling, "check", counted)
    return counts


def test_what_was_found_is_remembered_under_any_name(looked_at: Counter[GrammarSpec]) -> None:
    async def main() -> None:
        grammars = GrammarCheck()
        for name in ("guided_regex", "structured_outputs.regex"):
            await grammars.check(GOOD, name)
            with pytest.raises(RequestError) as caught:
                await grammars.check(BAD, name)
            assert caught.value.param == name
            assert str(caught.value).startswith(f"{name}: ")

    asyncio.run(main())
    assert looked_at == {GOOD: 1, BAD: 1}


def test_too_many_at_once_are_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(spec: GrammarSpec) -> None:
        assert go_on.wait(60)

    monkeypatch.setattr(compiling, "check", slow)

    async def main() -> None:
        grammars = GrammarCheck()
        specs = [GrammarSpec(kind="regex", text=f"a{i}") for i in range(MAX_WAITING)]
        waiting = [asyncio.ensure_future(grammars.check(spec, "x")) for spec in specs]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await grammars.check(GOOD, "x")
        left = waiting.pop()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        last = asyncio.ensure_future(grammars.check(GOOD, "x"))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(last, *waiting)

    asyncio.run(main())

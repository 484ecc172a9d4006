"""Several generations of one HTTP request, consumed as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from penstock.errors import PenstockError, RequestError
from penstock.frontend.outputs import CompletionOutput, RequestOutput


class GenerationError(PenstockError):
    """The engine could not continue this request; the message may be shown to the client."""


Generation = AsyncGenerator[RequestOutput, None]


async def refused_by_name(outputs: Generation, param: str) -> Generation:
    """``outputs``; raises RequestError naming the field ``param`` if the engine found it at fault.

    That a grammar's tokens do not exist, or that no text satisfies it, is known when the engine
    has compiled it; that it comes to a limit, or to no token, on the way.
    """
    async with aclosing(outputs):
        async for output in outputs:
            if output.refused:
                raise RequestError(f"{param}: {output.error}", param)
            yield output


async def merged(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield (index, newest output) of all generations as they arrive, until all have finished.

    Leaving the iteration, or the failure of one generation, ends all of them before this returns.
    """
    if len(generations) == 1:
        async with aclosing(generations[0]) as outputs:
            async for output in outputs:
                yield 0, _checked(output)
        return
    newest: dict[int, RequestOutput] = {}
    changed = asyncio.Event()

    async def follow(index: int, generation: Generation) -> None:
        try:
            async with aclosing(generation) as outputs:
                async for output in outputs:
                    newest[index] = _checked(output)  # cumulative: an unread one is contained in it
                    changed.set()
        finally:
            changed.set()

    tasks = [asyncio.ensure_future(follow(i, g)) for i, g in enumerate(generations)]
    try:
        while True:
            done = all(task.done() for task in tasks)
            for task in tasks:
                if task.done():
                    task.result()
            while newest:
                index = next(iter(newest))
                yield index, newest.pop(index)
            if done:
                return
            await changed.wait()
            changed.clear()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def last(generations: Sequence[Generation]) -> list[RequestOutput]:
    """Return the finished output of each generation, in order."""
    final: dict[int, RequestOutput] = {}
    async with aclosing(merged(generations)) as outputs:
        async for index, output in outputs:
            final[index] = output
    return [final[index] for index in range(len(generations))]


def has_news(choice: CompletionOutput, before: CompletionOutput | None) -> bool:
    """Whether ``choice`` has text or an end that ``before``, the last one sent, had not.

    Tokens alone are no news: while they spell no whole character, or may begin a stop string,
    there is nothing to send, and their log-probabilities wait for the text.
    """
    if before is not None and before.finish_reason is not None:
        return False
    return choice.finish_reason is not None or choice.has_text_since(before)


def _checked(output: RequestOutput) -> RequestOutput:
    if output.error is not None and output.refused:
        raise RequestError(output.error)  # what it asked for, not what the engine did
    if output.error is not None:
        raise GenerationError(output.error)
    return output

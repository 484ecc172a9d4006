"""Facts about one generation for its trace, taken when it ends. No prompt or output is kept."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.frontend.outputs import RequestOutput


@dataclass(frozen=True)
class TracedGeneration:
    """One prompt's way through the engine; times are in seconds of time.monotonic()."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reasons: tuple[str, ...]
    """Finish reasons of its sequences; ``abort`` if the client left."""
    arrived: float
    started: float | None
    """Time at which its prefill began; None if it never ran."""
    first: float | None
    """Time of its first token; for an embedding, of the result."""
    ended: float | None
    """Time at which it ended; None if the client left."""
    embedded: bool

    @classmethod
    def of(cls, output: RequestOutput) -> TracedGeneration:
        times = output.metrics
        return cls(
            prompt_tokens=len(output.prompt_token_ids),
            cached_tokens=output.num_cached_tokens,
            output_tokens=sum(choice.num_tokens for choice in output.outputs),
            finish_reasons=tuple(choice.finish_reason or "abort" for choice in output.outputs),
            arrived=times.arrival_time,
            started=times.scheduled_time,
            first=times.first_token_time,
            ended=times.finished_time,
            embedded=output.embedding is not None,
        )

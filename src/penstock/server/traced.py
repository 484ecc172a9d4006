"""What a trace tells of one generation, taken when it ends. Neither prompt nor output is kept."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.engine.completion import RequestOutput


@dataclass(frozen=True)
class TracedGeneration:
    """One prompt's way through the engine; seconds are of time.monotonic()."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reasons: tuple[str, ...]
    """Of its sequences; ``abort`` where it was left."""
    arrived: float
    started: float | None
    """When its prefill began; None if it never ran."""
    first: float | None
    """Its first token; of an embedding the whole."""
    ended: float | None
    """None if it was left."""
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

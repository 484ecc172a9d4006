"""What is kept of one request: all that its figures are made of."""

from __future__ import annotations

import msgspec


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a run. Times are in seconds from the run's start, unless a name says
    otherwise; None where it did not come to that."""

    index: int
    """Its place among all that were sent, by the time of sending."""
    conversation: str
    turn: int
    pattern: str | None = None
    scheduled_s: float
    """When it was due: by the process of arrival, or the end of what it waited for."""
    sent_s: float
    """When the client began to send it."""
    headers_s: float | None = None
    """When the first byte of the answer was read."""
    end_s: float
    """When the answer was complete, or had failed."""
    gaps_us: list[int] = []
    """Microseconds from ``sent_s`` to the first chunk with a token, and from each such chunk to the
    next."""
    reasoning_chunks: int = 0
    """How many of these chunks, from the first, had reasoning alone."""
    input_tokens_asked: int | None = None
    """Tokens of the text that was made for it, without the chat template's; None where this is a
    given text."""
    output_tokens_asked: int | None = None
    input_tokens: int | None = None
    """What the server's usage says; None where it says nothing."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    rejected_draft_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    received_bytes: int = 0
    error: str | None = None
    """Its kind, such as ``reset`` or ``http 503``; None where the answer is whole."""
    message: str | None = None
    """The error in words."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float | None:
        """Until the first chunk with a token."""
        return self.gaps_us[0] / 1e6 if self.gaps_us else None

    @property
    def ttst_s(self) -> float | None:
        """The time from the first chunk with a token to the second."""
        return self.gaps_us[1] / 1e6 if len(self.gaps_us) > 1 else None

    @property
    def ttfo_s(self) -> float | None:
        """Until the first chunk with more than reasoning."""
        if self.reasoning_chunks >= len(self.gaps_us):
            return None
        return sum(self.gaps_us[: self.reasoning_chunks + 1]) / 1e6

    @property
    def e2el_s(self) -> float | None:
        """Until the last chunk with a token."""
        return sum(self.gaps_us) / 1e6 if self.gaps_us else None

    @property
    def tokens(self) -> int:
        """Output tokens: those of the usage, or at least one for each chunk where it has none."""
        return self.output_tokens if self.output_tokens is not None else len(self.gaps_us)

    @property
    def tpot_s(self) -> float | None:
        """Time after the first token, per later token."""
        if self.tokens < 2 or len(self.gaps_us) < 2:
            return None
        return sum(self.gaps_us[1:]) / 1e6 / (self.tokens - 1)

    @property
    def discrepancies(self) -> list[str]:
        """Counts of the server's that cannot be true of what it sent."""
        found = []
        if self.output_tokens is not None and self.output_tokens < len(self.gaps_us):
            found.append("fewer output tokens than chunks with tokens")
        if (
            self.output_tokens is not None
            and self.output_tokens_asked is not None
            and self.output_tokens > self.output_tokens_asked
        ):
            found.append("more output tokens than asked for")
        if (
            self.cached_tokens is not None
            and self.input_tokens is not None
            and self.cached_tokens > self.input_tokens
        ):
            found.append("more cached tokens than prompt tokens")
        return found

"""What became of a request: the record of an exchange, and its error's kind."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from penstock.bench.load.connection import Exchange, Failure
from penstock.bench.load.events import EventReader, Usage, shown
from penstock.bench.load.record import RequestRecord
from penstock.bench.load.turn import Conversation

STOPPED: Final = "stopped"
"""The kind of error of requests that were open when the run was stopped."""


@dataclass(frozen=True)
class Asked:
    """Which request of a run it was."""

    number: int
    conversation: Conversation
    turn: int
    scheduled_s: float


def refusal(exchange: Exchange) -> Failure | None:
    """Why an answer that has come to its end is not what was asked for; None where it is."""
    reader = exchange.stream
    if exchange.status != 200:
        return _refused(exchange)
    if reader is None or reader.complete:
        if reader is not None and not reader.times:
            return Failure("no tokens", "the answer has no token")
        return None
    if not exchange.received or not (reader.times or reader.usage):
        return Failure("no tokens", "the stream ended without a token")
    return Failure("cut off", "the stream ended before the answer was complete")


def _refused(exchange: Exchange) -> Failure:
    status = exchange.status
    if 300 <= status < 400:
        return Failure(
            "redirect", f"status {status} to {exchange.location or 'elsewhere'}; name that URL"
        )
    return Failure(f"http {status}", f"status {status}: {error_words(exchange.body)}")


def error_words(body: bytes) -> str:
    """The message in an error's body, whatever form the server gives it."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return shown(body)
    while isinstance(value, dict):
        inner = value.get("error") or value.get("message") or value.get("detail")
        if inner is None:
            break
        value = inner
    return " ".join(value.split())[:300] if isinstance(value, str) else shown(body)


def recorded(
    asked: Asked,
    exchange: Exchange,
    reader: EventReader,
    start: float,
    failure: Failure | None,
) -> RequestRecord:
    """The record of a request that has ended just now, in a run that began at ``start``."""
    turn = asked.conversation.turns[asked.turn]
    usage = reader.usage or Usage()
    details = usage.completion_tokens_details
    times = [exchange.sent_at, *reader.times]
    ended = exchange.last_at if failure is None else time.perf_counter()
    return RequestRecord(
        index=asked.number,
        conversation=asked.conversation.name,
        turn=asked.turn,
        pattern=turn.pattern,
        scheduled_s=asked.scheduled_s,
        sent_s=exchange.sent_at - start,
        headers_s=None if exchange.headers_at is None else exchange.headers_at - start,
        end_s=ended - start,
        gaps_us=[round((b - a) * 1e6) for a, b in pairwise(times)],
        reasoning_chunks=(
            len(reader.times) if reader.first_content is None else reader.first_content
        ),
        input_tokens_asked=turn.new_tokens if turn.continues is None else None,
        output_tokens_asked=turn.output_tokens,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=(
            usage.prompt_tokens_details.cached_tokens
            if usage.prompt_tokens_details is not None
            else None
        ),
        reasoning_tokens=None if details is None else details.reasoning_tokens,
        accepted_draft_tokens=None if details is None else details.accepted_prediction_tokens,
        rejected_draft_tokens=None if details is None else details.rejected_prediction_tokens,
        finish_reason=reader.finish_reason,
        status=exchange.status or None,
        received_bytes=exchange.received,
        error=None if failure is None else failure.kind,
        message=None if failure is None else str(failure),
    )

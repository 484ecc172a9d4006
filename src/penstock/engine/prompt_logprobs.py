"""Collects the log-probabilities of prompts over steps, until a request's first output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.interface.executor import PromptReport, PromptRows
from penstock.interface.logprobs import TokenLogprobs
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.sequence import SequenceState, Status

_Entries = list[TokenLogprobs | None]


class WantedRows(NamedTuple):
    """Rows of one step that one sequence wants, and the list to which their log-probabilities
    go."""

    sequence: SequenceState
    rows: PromptRows
    entries: _Entries


class PromptLogprobsTracker:
    """Keeps the prompt log-probabilities computed so far, for each live request that asks for them.

    There is one list per request, whose first entry is None.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entries] = {}
        self.any = False
        """Whether any live request asks for them; checked in every step."""

    def expect(self, request_id: str) -> None:
        self._entries[request_id] = [None]
        self.any = True

    def pop(self, request_id: str) -> _Entries | None:
        """Remove and return the list of this request; None if it did not ask for one."""
        entries = self._entries.pop(request_id, None)
        self.any = bool(self._entries)
        return entries

    def wanted(self, step: ScheduledStep) -> list[WantedRows]:
        """Return which of the step's rows of logits predict prompt tokens whose log-probabilities
        are wanted."""
        found: list[WantedRows] = []
        if not self.any:
            return found
        row = 0
        for each in step.sequences:
            sequence, end = each.sequence, each.start + each.num_tokens
            first_row = row
            row += each.num_logits
            entries = self._entries.get(sequence.request_id)
            num_top = sequence.params.prompt_logprobs
            first = end - each.num_logits + 1  # the position that the first row predicts
            last = min(end + 1, sequence.num_prompt_tokens)
            if entries is None or num_top is None or first >= last:
                continue
            targets = sequence.token_ids[first:last].tolist()
            found.append(WantedRows(sequence, PromptRows(first_row, targets, num_top), entries))
        return found

    def add(self, wanted: Sequence[WantedRows], reports: Sequence[PromptReport]) -> dict[str, str]:
        """Keep the reports of a step; returns why reports failed, by request id."""
        errors: dict[str, str] = {}
        for (sequence, _, entries), report in zip(wanted, reports, strict=True):
            if not isinstance(report, str):
                entries += report
            elif sequence.status is not Status.FINISHED:  # its id may be another's by now
                errors[sequence.request_id] = report
        return errors

"""Log-probabilities of prompts: which rows of a step they want, kept until the first output."""

from __future__ import annotations

from typing import NamedTuple

from penstock.interface.executor import PromptReport, PromptRows
from penstock.interface.logprobs import TokenLogprobs
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.sequence import Sequence, Status

_Entries = list[TokenLogprobs | None]


class WantedRows(NamedTuple):
    """Rows of one step that one sequence wants, and the list that what they tell goes to."""

    sequence: Sequence
    rows: PromptRows
    entries: _Entries


class PromptReports:
    """One list per live request that asks for them, whose first entry is None."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entries] = {}
        self.any = False
        """Whether there are such requests; looked at in every step."""

    def expect(self, request_id: str) -> None:
        self._entries[request_id] = [None]
        self.any = True

    def pop(self, request_id: str) -> _Entries | None:
        """What there is of this request, if it was expected."""
        entries = self._entries.pop(request_id, None)
        self.any = bool(self._entries)
        return entries

    def wanted(self, step: ScheduledStep) -> list[WantedRows]:
        """Which of the step's rows of logits tell of prompt tokens."""
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

    def add(self, wanted: list[WantedRows], reports: list[PromptReport]) -> dict[str, str]:
        """Keep what the step told; returns what failed, by request id."""
        errors: dict[str, str] = {}
        for (sequence, _, entries), report in zip(wanted, reports, strict=True):
            if not isinstance(report, str):
                entries += report
            elif sequence.status is not Status.FINISHED:  # its id may be another's by now
                errors[sequence.request_id] = report
        return errors

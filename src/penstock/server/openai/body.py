"""Decodes the dialect's bodies: by its table of fields, for its one model, with reasoning
options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from penstock.server.body_decoder import BodyDecoder
from penstock.server.errors import ApiError
from penstock.server.fields.check import Advice
from penstock.server.fields.rules import Rule
from penstock.server.keeping import heeded
from penstock.server.openai.protocol import Sampling
from penstock.server.openai.template_reads import UNREAD, TemplateReads, header_names
from penstock.server.openai.thinking import heed

Body = TypeVar("Body", bound=msgspec.Struct)

_TEMPLATE_OPTIONS = "chat_template_kwargs"


class DialectDecoder(BodyDecoder[Body]):
    """Decodes one kind of body, of any dialect, by ``rules`` of its field table.

    ``model`` is the model that is used where the body names none, and ``reads`` are the variables
    that chat templates read.
    """

    def __init__(
        self,
        kind: type[Body],
        rules: Iterable[Rule] = (),
        model: str | None = None,
        reads: TemplateReads | None = None,
        keeps: bool = False,
    ) -> None:
        super().__init__(kind, rules)
        self._model = model
        self._keeps = keeps
        self._reads = TemplateReads() if reads is None else reads

    def _heed(self, advice: list[Advice], given: dict[str, Any]) -> list[Rule]:
        if self._model is not None:
            given.setdefault("model", self._model)
        if self._keeps:
            advice = heeded(advice, given)
        rules = [each.rule for each in advice if not each.rule.wish]
        wishes = [each for each in advice if each.rule.wish]
        if wishes:
            options = given.get(_TEMPLATE_OPTIONS, {})
            if isinstance(options, dict):
                rules += heed(wishes, self._reads.always, options, self._reads.efforts)
            if options:
                given[_TEMPLATE_OPTIONS] = options
        if self._unread(given):
            rules.append(UNREAD)
        return rules

    def _names(self, rule: Rule, given: dict[str, Any]) -> Iterable[str]:
        return header_names(self._unread(given)) if rule is UNREAD else (rule.field,)

    def _unread(self, given: dict[str, Any]) -> list[str]:
        options = given.get(_TEMPLATE_OPTIONS)
        return self._reads.unread(options) if isinstance(options, dict) else []

    def _check(self, request: Body) -> None:
        if isinstance(request, Sampling):
            _check_stream_options(request)


def _check_stream_options(request: Sampling) -> None:
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise ApiError(
            400, "stream_options is only allowed with stream=true", param="stream_options"
        )
    if options.continuous_usage_stats and not options.include_usage:
        raise ApiError(
            400,
            "stream_options.continuous_usage_stats is only allowed with include_usage=true",
            param="stream_options.continuous_usage_stats",
        )

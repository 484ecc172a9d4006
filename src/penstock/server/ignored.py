"""Telling clients and the operator which fields of requests are not followed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.server.open_requests import IGNORED, OpenRequest
from penstock.server.openai.fields import Rule

_log = logging.getLogger("penstock.fields")


class IgnoredFields:
    """Names them in each answer's header, and once in the log of the server."""

    def __init__(self) -> None:
        self._logged: set[Rule] = set()

    def tell(self, request: OpenRequest, ignored: Sequence[Rule]) -> None:
        """Every rule is one whose field the request has, and that only gave advice."""
        request.ignored = tuple(rule.field for rule in ignored)
        for rule in ignored:
            if rule not in self._logged:
                self._logged.add(rule)
                _log.info(
                    "clients send %r to %s, which is not followed: %s; the header %s of the "
                    "answer names it, the log does this once",
                    rule.field,
                    request.path,
                    rule.why.replace("`", "'"),
                    IGNORED,
                )

"""Reporting ignored request fields to clients and to the operator."""

from __future__ import annotations

import logging

from penstock.server.body_decoder import Body, Decoded
from penstock.server.fields.rules import Rule
from penstock.server.open_requests import IGNORED, OpenRequest

_log = logging.getLogger("penstock.fields")


class IgnoredFields:
    """Names ignored fields in a header of each response, and once in the server's log."""

    def __init__(self) -> None:
        self._logged: set[Rule] = set()

    def report(self, request: OpenRequest, decoded: Decoded[Body]) -> None:
        """Report the fields of the request that were ignored as advisory."""
        request.ignored = tuple(each for each in decoded.named if each not in request.heeded)
        for rule in decoded.ignored:
            if rule not in self._logged and rule.field not in request.heeded:
                self._logged.add(rule)
                _log.info(
                    "clients send %r to %s, which is not followed: %s; the header %s of the "
                    "answer names it, the log does this once",
                    rule.field,
                    request.path,
                    rule.why.replace("`", "'"),
                    IGNORED,
                )

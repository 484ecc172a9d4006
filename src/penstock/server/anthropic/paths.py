"""The paths of the dialect's endpoints."""

from __future__ import annotations

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"

"""The paths of the dialect's endpoints."""

from __future__ import annotations

GENERATE = "/generate"
STREAM = "/generate_stream"
EITHER = "/"
"""Whole or streamed, as the body's ``stream`` says."""
INFO = "/info"

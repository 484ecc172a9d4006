"""Shared by the programs of this folder: they try things with their client and print the
results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

URL, MODEL = sys.argv[1] + "/v1", sys.argv[2]
KEY = "none"
HI: list[Any] = [{"role": "user", "content": "import os"}]
TOKENS = 24


class Trip(BaseModel):
    """A trip to a city."""

    model_config = ConfigDict(extra="forbid")  # a small model does not stop to add fields

    city: Literal["Paris", "Rome", "Oslo"]
    days: int = Field(ge=1, le=9)


class Weekend(BaseModel):
    """Two days in a city: without bounds of numbers, which some clients take out of schemas."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome", "Oslo"]


TOOL = {
    "type": "function",
    "function": {
        "name": "book_trip",
        "description": "Book a trip.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def attempt(what: str, work: Callable[[], object]) -> None:
    """Print one line: whether ``work`` came to its end, and what stopped it."""
    try:
        work()
    except Exception as error:
        print(
            json.dumps({"what": what, "passed": False, "why": f"{type(error).__name__}: {error}"})
        )
    else:
        print(json.dumps({"what": what, "passed": True}))
    sys.stdout.flush()


def booked(arguments: str | dict[str, object]) -> None:
    """Raise AssertionError or ValidationError for what are no arguments of the tool."""
    if isinstance(arguments, str):
        Trip.model_validate_json(arguments)
    else:
        Trip.model_validate(arguments)

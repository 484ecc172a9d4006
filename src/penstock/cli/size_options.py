"""How ``penstock size`` reads durations, objectives, drafts and lists of choices."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.cli.options import parse_count, positive_int
from penstock.errors import ConfigError
from penstock.sizing.serving import Slo, Speculation

T = TypeVar("T")

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_OBJECTIVES = ("ttft", "tpot", "latency")


def parse_duration(text: str) -> float:
    """Seconds of ``500ms``, ``0.5s``, ``2min``; a unit is needed."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s|min)", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"not a duration: {text!r} (write 500ms, 0.5s or 2min)")
    return float(match[1]) * _UNITS[match[2]]


def parse_objective(text: str) -> tuple[str, float]:
    """``ttft:500ms`` is the name of an objective and its seconds."""
    name, mark, value = text.partition(":")
    if not mark:
        name, mark, value = text.partition("=")
    if name.lower() not in _OBJECTIVES or not mark:
        raise argparse.ArgumentTypeError(
            f"not an objective: {text!r} (write ttft:500ms, tpot:30ms or latency:10s)"
        )
    return name.lower(), parse_duration(value)


def slo_of(objectives: Sequence[tuple[str, float]]) -> Slo:
    """Raises ConfigError where one is named twice."""
    names = [name for name, _ in objectives]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--slo names {twice} twice; leave one out")
    return Slo(**dict(objectives))


def parse_tokens(text: str) -> int:
    """A number of tokens that is at least 1 and could be a context: ``2k``, ``8192``."""
    count = parse_count(text)
    if not 1 <= count <= 10**8:
        raise argparse.ArgumentTypeError(f"not a number of tokens from 1 to 100M: {text!r}")
    return count


def parse_speculation(text: str) -> Speculation:
    """``tokens=4,accept=0.7,cost=0.05``; the cost may be left out."""
    fields: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            fields[name.strip()] = float(value)
        except ValueError:
            fields = {}
            break
    tokens, accept = fields.get("tokens", 0.0), fields.get("accept", -1.0)
    known = set(fields) <= {"tokens", "accept", "cost"}
    cost = fields.get("cost", 0.0)
    if not known or not (1 <= tokens <= 64 and tokens.is_integer()):
        raise argparse.ArgumentTypeError(
            f"not drafts: {text!r} (write tokens=4,accept=0.7,cost=0.05: 1 to 64 drafted tokens, "
            "the chance that one is accepted, and what one costs as a part of a step)"
        )
    if not (0 <= accept <= 1 and 0 <= cost <= 1):
        raise argparse.ArgumentTypeError(
            f"accept and cost of drafts are between 0 and 1, and accept is needed: {text!r}"
        )
    return Speculation(int(tokens), accept, cost)


def parse_price(text: str) -> float:
    """Dollars an hour, at least 0."""
    try:
        price = float(text.lstrip("$"))
    except ValueError:
        price = -1.0
    if not 0 <= price < 1e5:
        raise argparse.ArgumentTypeError(f"not a price: {text!r} (write 2.5, dollars an hour)")
    return price


def parse_threads(text: str) -> int | str:
    """A number of threads, or a list of CPUs, which the engine reads."""
    return int(text) if text.isdecimal() else text


def listed(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A reader of ``1,2,4``, of which ``read`` reads each."""

    def parse(text: str) -> tuple[T, ...]:
        return tuple(read(part.strip()) for part in text.split(","))

    return parse


def one_of(*known: str) -> Callable[[str], str]:
    """A reader of one of these words."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return parse


COUNTS = listed(positive_int)

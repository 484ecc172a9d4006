"""Values of the options of ``penstock train-heads``.

Each function raises ArgumentTypeError with the reason.
"""

from __future__ import annotations

import argparse
import math

from penstock.cli.options import positive_int


def positive(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return number


def not_negative(text: str) -> float:
    number = _number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"is negative: {text!r}")
    return number


def share(text: str) -> float:
    number = _number(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"not a share between 0 and 1: {text!r}")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"not a number: {text!r}")
    return number


def window(text: str) -> int:
    number = positive_int(text)
    if number < 16:
        raise argparse.ArgumentTypeError(f"{text} is shorter than 16 tokens")
    return number


def layers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"not three layers: {text!r} (like 2,16,29)")
    return tuple(int(part) for part in parts)

"""Sizes and times as tables of commands show them."""

from __future__ import annotations


def size(num_bytes: int) -> str:
    """Bytes in decimal units: ``1.25 GB``."""
    for unit, letter in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.3g} {letter}"
    return f"{num_bytes} B"


def age(seconds: float) -> str:
    """How long ago something was: ``3 hours ago``."""
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= unit:
            count = int(seconds // unit)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"

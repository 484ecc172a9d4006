"""Numbers as tables show them."""

from __future__ import annotations


def digits(number: float, count: int = 4) -> str:
    """``number`` with so many digits that count, or all before the point where these are more, and
    thousandths at the least: ``12,345``, ``757.0``, ``0.093``."""
    whole = len(f"{abs(number):.0f}") if abs(number) >= 1 else 0
    return f"{number:,.{max(0, min(3, count - whole))}f}"


def megabytes(count: float) -> str:
    """Bytes as ``1,192 MB``, ``30.1 MB`` or ``0.087 MB``."""
    return f"{digits(count / 1e6, 3)} MB"

"""What is said of fields of a model's configuration that Penstock does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMED: Final = 8
"""So many are named at once; a file of another kind may have thousands."""


def refusal(unknown: Mapping[str, str], kind: str) -> str:
    """A sentence without its end.

    ``unknown`` has the values, as they are to be shown, by the names for ``ignore_config_field``;
    ``kind`` is "field" or "key".
    """
    names = list(unknown)[:_NAMED]
    listed = ", ".join(f"{name} ({unknown[name]})" for name in names)
    if len(unknown) > _NAMED:
        listed += f" and {len(unknown) - _NAMED} more"
    one = len(unknown) == 1
    what = f"is not a {kind}" if one else f"are not {kind}s"
    they, do = ("it", "does") if one else ("they", "do")
    options = " ".join(f"--ignore-config-field {name}" for name in names)
    fields = ", ".join(f'"{name}"' for name in names)
    return (
        f"{listed} {what} Penstock knows here, so {they} might change the model's results; if "
        f"{they} {do} not, say so with {options} (in Python, ignore_config_field=[{fields}])"
    )

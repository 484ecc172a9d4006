"""Values of JSON as YAML that every reader takes for the same values."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

_AMBIGUOUS: Final = re.compile(r"[-+.]?\d.*|[yYnN]|\..*", re.DOTALL)
"""Texts that some readers take for numbers or truth values: Kubernetes' takes ``1e3`` for a
number and ``y`` for true, where PyYAML has texts."""


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # it has no types
    """Writes texts of several lines as blocks, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def written(value: Any) -> str:
    """One document of YAML, with keys in their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100)
    return text


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else '"' if _AMBIGUOUS.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)

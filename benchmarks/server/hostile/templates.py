"""Chat templates that would take all time or all memory, if they were let."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

BOMBS = {
    "loops": "{% for a in range(900) %}{% for b in range(900) %}{% for c in range(900) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "replace": "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set n.s = n.s.replace('a', 'aaaaaaaa') %}{% endfor %}{{ n.s }}",
    "join": "{% set n = namespace(s=['aaaaaaaa']) %}{% for i in range(60) %}"
    "{% set n.s = [n.s | join, n.s | join, n.s | join, n.s | join] %}{% endfor %}{{ n.s }}",
    "tojson": "{{ messages | tojson(indent=2000000000) }}",
    "wordwrap": "{{ ('a' * 30000000) | wordwrap(1) }}",
    "slice": "{{ messages | slice(2000000000) | list }}",
    "to_bytes": "{{ (1).to_bytes(2000000000, 'little') }}",
    "ljust": "{{ 'a'.ljust(20000000).ljust(2000000000) }}",
    "batch": "{{ messages | batch(2000000000, 'a') | list }}",
    "lipsum": "{{ lipsum(n=10000000) }}",
}
"""The body of a template, by the feature that it abuses."""

_SWITCH = (
    "{%% if messages[0].content == 'bomb' %%}%s{%% else %%}{{ messages[0].content }}{%% endif %%}"
)


def checkpoint(folder: Path, to: Path, bomb: str) -> None:
    """A copy of a checkpoint whose template goes off where the first message is ``bomb``."""
    shutil.copytree(folder, to)
    path = to / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["chat_template"] = _SWITCH % bomb
    path.write_text(json.dumps(settings))

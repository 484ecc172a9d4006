"""What ``penstock serve`` prints when it is ready."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_KEY: Final = "YOUR-KEY"
"""Stands for a key in the example: keys are secrets, and may be in files that only we may read."""


@dataclass(frozen=True)
class Announcement:
    """What a server tells who has started it: what is served, where, and how to ask it.

    The example is a command for a shell that works as pasted, but for the key, where keys are
    needed.
    """

    version: str
    model: str
    """The model's name in requests."""
    urls: Sequence[str]
    """Where the server is reached, such as ``http://127.0.0.1:8000``; the example asks the
    first."""
    facts: Sequence[str]
    """Lines about the model and how it runs."""
    chats: bool
    """Whether the example is a chat; otherwise it is a completion."""
    prompt: str
    """What the example has the model complete, or say something to."""
    keys_needed: bool
    links: Sequence[tuple[str, str]]
    """What else the server has: a word for it, and its path."""

    def text(self, columns: int | None) -> str:
        """All lines; with ``columns``, broken so that none is longer where that can be helped."""
        first, *others = self.urls
        lines = [
            f"penstock {self.version} serves {self.model} at {first}/v1",
            *(f"  also at {url}/v1" for url in others),
            *(f"  {fact}" for fact in self.facts),
        ]
        if columns is not None:
            lines = [part for line in lines for part in _broken(line, columns)]
        width = max(len(name) for name, _ in (*self.links, ("stop", "")))
        links = [f"  {name:<{width}}  {first}{path}" for name, path in self.links]
        return "\n".join(
            [*lines, "", *self._example(columns), "", *links, f"  {'stop':<{width}}  Ctrl-C", ""]
        )

    def _example(self, columns: int | None) -> list[str]:
        model, prompt = json.dumps(self.model), json.dumps(self.prompt)
        if self.chats:
            path = "/v1/chat/completions"
            asked = f'"messages": [{{"role": "user", "content": {prompt}}}]'
        else:
            path, asked = "/v1/completions", f'"prompt": {prompt}'
        words = [f"curl {self.urls[0]}{path}", "-H 'Content-Type: application/json'"]
        if self.keys_needed:
            words.append(f"-H 'Authorization: Bearer {_KEY}'")
        if self.urls[0].startswith("https:"):
            words.append("--insecure")  # a certificate seldom names the address that we listen on
        fields = [f'{{"model": {model},', f"{asked},", '"max_tokens": 100, "temperature": 0}']
        words.append(f"-d {shlex.quote(' '.join(fields))}")
        width = (columns or 100) - len("    ") - len(" \\")
        lines = [words[0]]
        for word in words[1:]:
            if len(lines[-1]) + 1 + len(word) <= width:
                lines[-1] += f" {word}"
                continue
            lines[-1] += " \\"
            lines.append(f"  {word}")
        if columns is not None and len(lines[-1]) > width:
            # White space between the fields of a JSON object may as well be the end of a line.
            lines[-1:] = [
                f"  {part}" for part in f"-d {shlex.quote(chr(10).join(fields))}".split("\n")
            ]
        return [f"  {line}" for line in lines]


def _broken(line: str, columns: int) -> list[str]:
    return textwrap.wrap(
        line, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )

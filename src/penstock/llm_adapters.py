"""The adapters of an ``LLM``, by the names that its callers have for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import RequestError, shown


@dataclass(frozen=True)
class LoRARequest:
    """An adapter as vLLM's users name it: it is loaded when it is first used."""

    lora_name: str
    lora_int_id: int
    """Read by nobody here: an adapter is known by its name, and by what is in it."""
    lora_path: str = ""


Lora = str | LoRARequest | Sequence[str | LoRARequest | None] | None
"""The adapter of all prompts, or that of each; None: the model alone."""


class LlmAdapters:
    """Names of adapters, and what they stand for. Safe to share between threads.

    ``names`` has the digests of those that the engine has loaded at its start, and ``paths`` their
    folders. ``load`` loads a folder into the engine and returns the adapter's digest; ``drop``
    forgets one.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        paths: Mapping[str, str],
        load: Callable[[Path], str],
        drop: Callable[[str], None],
    ) -> None:
        self._names = dict(names)
        self._paths = dict(paths)
        self._load = load
        self._drop = drop
        self._changes = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def load(self, name: str, path: str | Path) -> None:
        """Load an adapter, in the place of one of the same name. Raises ConfigError or
        WeightError."""
        if not isinstance(name, str) or not name:
            raise RequestError(f"an adapter's name must be a text, not {shown(name)}", "lora")
        if not isinstance(path, str | Path) or not str(path):
            raise RequestError(
                f"the adapter {shown(name)} is not loaded, and its path is {shown(path)}; give the "
                "folder that it lies in",
                "lora",
            )
        with self._changes:
            digest = self._load(Path(path))
            before = self._names.get(name)
            self._names[name] = digest
            self._paths[name] = str(path)
            self._drop_unnamed(before)

    def unload(self, name: str) -> None:
        """Forget an adapter. What uses it already goes on. Raises RequestError."""
        with self._changes:
            self.digest(name)
            self._paths.pop(name, None)
            self._drop_unnamed(self._names.pop(name))

    def digests(self, lora: Lora, count: int) -> list[str]:
        """What requests for so many prompts name; empty for the model alone. Raises RequestError,
        and what loading does for an adapter that is not loaded yet."""
        several = isinstance(lora, Sequence) and not isinstance(lora, str)
        each: list[Any] = list(lora) if several else [lora] * count  # type: ignore[arg-type]
        if len(each) != count:
            raise RequestError(f"{count} prompts, but {len(each)} adapters", "lora")
        return [self._digest_of(asked) for asked in each]

    def digest(self, name: str) -> str:
        """The digest of the adapter of this name. Raises RequestError."""
        digest = self._names.get(name)
        if digest is None:
            there = ", ".join(self._names) or "none"
            raise RequestError(f"no adapter is called {shown(name)} (loaded: {there})", "lora")
        return digest

    def _digest_of(self, asked: object) -> str:
        if asked is None:
            return ""
        if isinstance(asked, LoRARequest):
            name, path = asked.lora_name, asked.lora_path
            if name not in self._names or (path and self._paths.get(name, path) != path):
                self.load(name, path)
            return self.digest(name)
        if not isinstance(asked, str):
            raise RequestError(
                f"an adapter is the name of one, or a LoRARequest, not {shown(asked)}", "lora"
            )
        return self.digest(asked)

    def _drop_unnamed(self, digest: str | None) -> None:
        if digest is not None and digest not in self._names.values():
            self._drop(digest)

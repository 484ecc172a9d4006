"""Which adapter a name stands for in an ``LLM``, without an engine."""

from __future__ import annotations

from pathlib import Path

from penstock import LoRARequest
from penstock.llm_adapters import LlmAdapters


def test_another_folder_under_a_name_is_loaded_in_its_place() -> None:
    """Also under the name of one that the engine was started with."""
    loaded: list[str] = []
    dropped: list[str] = []

    def load(folder: Path) -> str:
        loaded.append(str(folder))
        return f"digest of {folder}"

    adapters = LlmAdapters({"sql": "digest of one"}, {"sql": "one"}, load, dropped.append)
    one, two = LoRARequest("sql", 1, "one"), LoRARequest("sql", 1, "two")
    asked = [one, LoRARequest("sql", 7), two, two, "sql", None]
    assert adapters.digests(asked, 6) == [
        *("digest of one", "digest of one"),
        *("digest of two", "digest of two", "digest of two", ""),
    ]
    assert (loaded, dropped) == (["two"], ["digest of one"])

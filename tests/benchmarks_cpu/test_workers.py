"""What workers ask of their engines, as far as it can be seen without these."""

from __future__ import annotations

import importlib
import itertools
import sys
from types import SimpleNamespace

import pytest

from comparison.protocol import Load

LLAMA_CPP = SimpleNamespace(GGML_TYPE_F16=1, GGML_TYPE_Q8_0=8)


@pytest.mark.parametrize(
    ("module", "server", "words"),
    [
        ("penstock_server", "PenstockServer", {"16": "auto", "8": "int8"}),
        ("llama_server", "LlamaServer", {"16": "f16", "8": "q8_0"}),
    ],
)
def test_servers_keep_keys_and_values_in_the_bits_that_are_compared(
    module: str, server: str, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", LLAMA_CPP)
    monkeypatch.setenv("LLAMA_SERVER", "llama-server")
    worker = importlib.import_module(f"workers.{module}")
    for bits, word in words.items():
        settings = {"clients": "2", "kv_bits": bits}
        command = getattr(worker, server)().command(Load("m", "bf16", 1, 4, 64, 0, settings), 8000)
        options = {name: value for name, value in itertools.pairwise(command) if value == word}
        assert set(options) in ({"--kv-cache-dtype"}, {"-ctk", "-ctv"})

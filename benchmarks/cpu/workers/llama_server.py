"""llama.cpp's own server, as many slots as there are clients at once."""

from __future__ import annotations

import os
from typing import Any

from comparison.protocol import Load
from workers.llama_cpp import isa, kv_type
from workers.loop import serve
from workers.served import HOST, Served

CELLS = 256  # a slot's cache is a multiple of this


class LlamaServer:
    def command(self, options: Load, port: int) -> list[str]:
        slots = int(options.settings["clients"])
        length = -(-options.max_length // CELLS) * CELLS
        threads, (_, kv) = str(options.threads), kv_type(options)
        return [
            *(os.environ["LLAMA_SERVER"], "-m", options.model),
            *("-t", threads, "-tb", threads, "-np", str(slots), "-c", str(slots * length)),
            *("-ctk", kv, "-ctv", kv),
            *("--no-cache-prompt", "--cache-ram", "0", "--ctx-checkpoints", "0"),
            *("--no-webui", "--no-slots", "--host", HOST, "--port", str(port)),
        ]

    def isa(self) -> str:
        """Ask the library that the server and the binding share."""
        return isa()

    def extra_fields(self) -> dict[str, Any]:
        """Greedy by the sampler that sorts least; its default chain sorts the vocabulary."""
        return {"samplers": ["top_k"], "top_k": 1, "cache_prompt": False}


if __name__ == "__main__":
    serve(Served(LlamaServer()))

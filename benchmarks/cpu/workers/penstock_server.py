"""``penstock serve``."""

from __future__ import annotations

import sys
from typing import Any

from comparison.protocol import Load
from penstock.backends.cpu import native
from workers.loop import serve
from workers.penstock import QUANTIZATION, kv_dtype
from workers.served import HOST, Served


class PenstockServer:
    def command(self, options: Load, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "penstock", "serve", options.model),
            *("--dtype", "bfloat16", "--quantization", QUANTIZATION[options.precision]),
            *("--threads", str(options.threads), "--max-model-len", str(options.max_length)),
            *("--max-num-seqs", str(options.max_sequences)),
            *("--kv-cache-dtype", kv_dtype(options)),
            *("--host", HOST, "--port", str(port)),
        ]

    def isa(self) -> str:
        """Ask the module that the server's processes load, too."""
        return native.load().isa

    def extra_fields(self) -> dict[str, Any]:
        return {}


if __name__ == "__main__":
    serve(Served(PenstockServer()))

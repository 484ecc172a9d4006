"""vLLM's OpenAI server."""

from __future__ import annotations

import os
import sys
from typing import Any

from comparison.protocol import Load
from workers.loop import serve
from workers.onednn_isa import vllm_isa
from workers.served import HOST, Served


class VllmServer:
    def command(self, options: Load, port: int) -> list[str]:
        gigabytes = -(-options.kv_bytes // (1 << 30)) + 1
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(gigabytes)
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", options.model, "--dtype", "bfloat16", "--no-enable-prefix-caching"),
            *("--max-model-len", str(options.max_length)),
            *("--max-num-seqs", str(options.max_sequences)),
            *("--host", HOST, "--port", str(port)),
        ]

    def isa(self) -> str:
        """Ask torch in the same environment: the server does not tell."""
        return vllm_isa()

    def extra_fields(self) -> dict[str, Any]:
        return {}


if __name__ == "__main__":
    serve(Served(VllmServer()))

"""vLLM's CPU build, its engine in this process, a step at a time."""

from __future__ import annotations

import os

import vllm
from vllm import LLM, SamplingParams

from comparison.protocol import Load, Request
from workers.loop import TokenTimes, serve
from workers.onednn_isa import vllm_isa


class Vllm:
    def load(self, options: Load) -> dict[str, str]:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = cache_gigabytes(options)
        self.llm = LLM(
            options.model,
            dtype="bfloat16",
            max_model_len=options.max_length,
            max_num_seqs=options.max_sequences,
            enable_prefix_caching=False,
        )
        self.next_id = 0
        return {
            "vllm": vllm.__version__,
            "isa": vllm_isa(),
            "quantization": str(self.llm.llm_engine.model_config.quantization),
            "kv_cache_gb": cache_gigabytes(options),
            "compiled": str(not self.llm.llm_engine.model_config.enforce_eager),
        }

    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        if clients is not None:
            raise RuntimeError("HTTP is served by vllm_server")
        engine = self.llm.llm_engine
        index: dict[str, int] = {}
        counts = [0] * len(requests)
        times.start()
        for i, request in enumerate(requests):
            params = SamplingParams(temperature=0.0, max_tokens=request.output, ignore_eos=True)
            name = str(self.next_id)
            self.next_id += 1
            prompt = {"prompt_token_ids": request.prompt}
            # The engine may make its own name out of the one it is given, and answers with ours.
            engine.add_request(name, prompt, params)
            index[name] = i
        while engine.has_unfinished_requests():
            for output in engine.step():
                i = index[output.request_id]
                came = len(output.outputs[0].token_ids)
                times.add(i, came - counts[i])
                counts[i] = came

    def close(self) -> None:
        """The process ends with it."""


def cache_gigabytes(options: Load) -> str:
    return str(-(-options.kv_bytes // (1 << 30)) + 1)


if __name__ == "__main__":
    serve(Vllm())

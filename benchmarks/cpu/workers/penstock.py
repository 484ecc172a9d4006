"""Penstock through its public ``LLM``."""

from __future__ import annotations

import penstock
from comparison.protocol import Load, Request
from penstock import LLM, SamplingParams
from penstock.api import Prompt
from penstock.backends.cpu import native
from workers.loop import TokenTimes, serve

QUANTIZATION = {"int4": "int4", "int8": "int8", "bf16": "none", "file": "none"}


def kv_dtype(options: Load) -> str:
    """The type of keys and values, as Penstock's option names it."""
    return "int8" if options.settings.get("kv_bits") == "8" else "auto"


class Penstock:
    def load(self, options: Load) -> dict[str, str]:
        self.llm = LLM(
            options.model,
            dtype="bfloat16",
            quantization=QUANTIZATION[options.precision],
            threads=options.threads,
            max_num_seqs=options.max_sequences,
            max_model_len=options.max_length,
            kv_cache_dtype=kv_dtype(options),
        )
        config = self.llm.config
        return {
            "penstock": penstock.__version__,
            "quantization": config.quantization,
            "weights": str(config.schemes.linear or config.dtype),
            "kv cache": str(config.kv_cache_dtype),
            "max_num_batched_tokens": str(config.max_num_batched_tokens),
            "isa": native.load().isa,
        }

    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        if clients is not None:
            raise RuntimeError("HTTP is served by penstock_server")
        prompts: list[Prompt] = [{"prompt_token_ids": request.prompt} for request in requests]
        params = [
            SamplingParams(temperature=0.0, max_tokens=request.output, ignore_eos=True)
            for request in requests
        ]
        counts = dict.fromkeys(range(len(requests)), 0)
        started: list[str] = []
        index: dict[str, int] = {}
        times.start()
        for output in self.llm.stream(prompts, params, started=started):
            if not index:
                index = {request_id: i for i, request_id in enumerate(started)}
            if output.error is not None:
                raise RuntimeError(output.error)
            i = index[output.request_id]
            came = len(output.outputs[0].token_ids)
            times.add(i, came - counts[i])
            counts[i] = came

    def score(self, windows: list[list[int]], first: int) -> float:
        prompts: list[Prompt] = [{"prompt_token_ids": window} for window in windows]
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        loss = 0.0
        for window, output in zip(windows, self.llm.generate(prompts, params), strict=True):
            if output.error is not None or output.prompt_logprobs is None:
                raise RuntimeError(output.error or "there are no log-probabilities")
            for token, entry in zip(window[first:], output.prompt_logprobs[first:], strict=True):
                assert entry is not None  # the first token of a prompt alone has none
                loss -= entry[token].logprob
        return loss

    def close(self) -> None:
        if hasattr(self, "llm"):
            self.llm.close()


if __name__ == "__main__":
    serve(Penstock())

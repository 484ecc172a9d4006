"""onnxruntime-genai's generator: static batches, which is what it has for CPUs."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime_genai as og

from comparison.protocol import Load, Request
from workers.loop import TokenTimes, serve

BATCH = 32  # the most that it takes


class OnnxRuntime:
    def load(self, options: Load) -> dict[str, str]:
        config = og.Config(options.model)
        session = {"intra_op_num_threads": options.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self.model = og.Model(config)
        return {
            "onnxruntime_genai": og.__version__,
            "threads": str(options.threads),
            "accuracy_level": "4",
            "batches": "static, prompts padded to the longest, until the longest output",
        }

    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        if clients is not None:
            raise RuntimeError("onnxruntime-genai has no server")
        times.start()
        for first in range(0, len(requests), BATCH):
            self.batch(requests, range(first, min(first + BATCH, len(requests))), times)

    def batch(self, requests: list[Request], rows: range, times: TokenTimes) -> None:
        longest = max(len(requests[i].prompt) for i in rows)
        steps = max(requests[i].output for i in rows)
        ids = np.zeros((len(rows), longest), np.int32)
        for row, i in enumerate(rows):
            # Padding takes part in attention here: of random weights only the time is asked.
            ids[row, longest - len(requests[i].prompt) :] = requests[i].prompt
        params = og.GeneratorParams(self.model)
        length = longest + steps
        params.set_search_options(
            batch_size=len(rows), min_length=length, max_length=length, do_sample=False
        )
        generator = og.Generator(self.model, params)
        generator.append_tokens(ids)
        for step in range(steps):
            generator.generate_next_token()
            for i in rows:
                if step < requests[i].output:
                    times.add(i)

    def close(self) -> None:
        """The process ends with it."""


if __name__ == "__main__":
    serve(OnnxRuntime())

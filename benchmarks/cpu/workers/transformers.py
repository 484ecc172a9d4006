"""transformers' ``generate``: static batches, which is all that it is made for on a CPU."""

from __future__ import annotations

from typing import cast

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from comparison.protocol import Load, Request
from workers.loop import TokenTimes, serve
from workers.onednn_isa import torch_isa


class Clock(StoppingCriteria):
    """Called after every step; never stops a row by itself."""

    def __init__(self, requests: list[Request], times: TokenTimes) -> None:
        self.requests, self.times, self.steps = requests, times, 0

    def __call__(
        self, input_ids: torch.LongTensor, scores: object, **kwargs: object
    ) -> torch.BoolTensor:
        for i, request in enumerate(self.requests):
            if self.steps < request.output:
                self.times.add(i)
        self.steps += 1
        ended = torch.zeros(input_ids.shape[0], dtype=torch.bool)
        return cast(torch.BoolTensor, ended)


class Transformers:
    def load(self, options: Load) -> dict[str, str]:
        torch.set_num_threads(options.threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        self.model.generation_config.eos_token_id = None
        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "isa": torch_isa(),
            "attention": "sdpa",
            "batches": "static, prompts padded to the longest, until the longest output",
        }

    @torch.inference_mode()
    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        if clients is not None:
            raise RuntimeError("transformers has no server here")
        longest = max(len(request.prompt) for request in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        steps = max(request.output for request in requests)
        times.start()
        self.model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=steps,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([Clock(requests, times)]),
        )

    def close(self) -> None:
        """The process ends with it."""


if __name__ == "__main__":
    serve(Transformers())

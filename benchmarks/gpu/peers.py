"""transformers on the same requests: ``generate`` in static batches, and its continuous batching.

The same shape in bfloat16 with random weights; what follows an end-of-sequence token is computed
as well, so that every request gets the tokens it asks for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from gpu.results import Mixed
from gpu.workload import Size, mixed_lengths
from penstock.bench.traces import Lengths
from penstock.bench.workload import random_requests

STATIC_BATCHES = (32, 64)
"""Batch sizes of ``generate``; the faster counts. A batch that does not fit the memory is left
out."""
_WAIT_S = 1.0


def build(model: Path, device: torch.device, seed: int = 0) -> Any:
    """A causal LM of the configuration in ``model``, its weights drawn on ``device``."""
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(model)
    config.eos_token_id = None
    with torch.device(device):
        built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    built = built.to(device).eval()
    built.generation_config = GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=None)
    return built


def prompts_of(lengths: Sequence[Lengths], vocab_size: int) -> list[list[int]]:
    """The same tokens as Penstock gets."""
    return [list(r.prompt_token_ids) for r in random_requests(lengths, vocab_size, 99)]


@torch.inference_mode()
def generate(model: Any, size: Size, batches: Sequence[int] = STATIC_BATCHES) -> Mixed:
    """Static batches in the order of arrival: prompts padded to the longest, until the longest
    output. Tokens that nobody asked for do not count. Raises RuntimeError where no batch fits.
    """
    lengths = mixed_lengths(size)
    prompts = prompts_of(lengths, model.config.vocab_size)
    seconds: dict[int, float] = {}
    for batch in batches:
        try:
            _static(model, prompts[:2], 4)
            _wait(model)
            start = time.perf_counter()
            for first in range(0, len(prompts), batch):
                longest = max(n.output for n in lengths[first : first + batch])
                _static(model, prompts[first : first + batch], longest)
            _wait(model)
            seconds[batch] = time.perf_counter() - start
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    if not seconds:
        raise RuntimeError(f"generate has too little memory for a batch of {min(batches)}")
    best = min(seconds, key=lambda batch: seconds[batch])
    shown = {str(batch): f"{spent:.2f} s" for batch, spent in seconds.items()}
    return _mixed(lengths, seconds[best], {"batch": str(best), "batches": str(shown)}, model)


def _static(model: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    made = model.generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
    )
    if made.shape != (len(prompts), longest + new_tokens):
        raise RuntimeError(f"generate gave {tuple(made.shape)}, not {new_tokens} tokens more")


@torch.no_grad()  # not inference mode: the manager's thread writes to what is made here
def generate_batch(model: Any, size: Size) -> Mixed:
    """Continuous batching as ``generate_batch`` runs it, with each request's own output length,
    which ``generate_batch`` itself cannot be given. Its warm-up is not counted.

    Raises RuntimeError where a request fails or the manager ends.
    """
    lengths = mixed_lengths(size)
    prompts = prompts_of(lengths, model.config.vocab_size)
    config = GenerationConfig(
        do_sample=False,
        pad_token_id=0,
        eos_token_id=-1,  # none: -1 is no token
        max_new_tokens=max(n.output for n in lengths),
    )
    with model.continuous_batching_context_manager(generation_config=config) as manager:
        warm = [prompt[::-1] for prompt in prompts[:8]]  # no prefix of what is timed
        _continuous(manager, warm, [8] * len(warm), "warm")
        start = time.perf_counter()
        outputs = [n.output for n in lengths]
        _continuous(manager, prompts, outputs, "mixed")
        seconds = time.perf_counter() - start
    attention = str(getattr(model.config, "_attn_implementation", "unknown"))
    return _mixed(lengths, seconds, {"attention": attention}, model)


def _continuous(
    manager: Any, prompts: Sequence[list[int]], outputs: Sequence[int], name: str
) -> None:
    wanted = {}
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        identity = manager.add_request(
            prompt, request_id=f"{name}{i}", max_new_tokens=output, eos_token_id=-1
        )
        wanted[identity] = output
    while wanted:
        result = manager.get_result(timeout=_WAIT_S)
        if result is None:
            if not manager.is_running():
                raise RuntimeError(f"continuous batching ended with {len(wanted)} requests open")
            continue
        if not result.is_finished():
            continue
        if result.error is not None:
            raise RuntimeError(f"a request failed: {result.error}")
        output = wanted.pop(result.request_id)
        if len(result.generated_tokens) != output:
            raise RuntimeError(f"{len(result.generated_tokens)} tokens came instead of {output}")


def _wait(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def _mixed(
    lengths: Sequence[Lengths], seconds: float, settings: dict[str, str], model: Any
) -> Mixed:
    return Mixed(
        requests=len(lengths),
        prompt_tokens=sum(n.prompt for n in lengths),
        output_tokens=sum(n.output for n in lengths),
        seconds=seconds,
        settings={
            "transformers": transformers.__version__,
            "dtype": str(model.dtype),
            **settings,
        },
    )

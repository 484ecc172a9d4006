"""What masks of grammars cost, and how much of it a step hides.

  PYTHONPATH=src python benchmarks/structured_output.py [--model FOLDER] [--batch N]

For each kind of grammar: processor time of a mask in the thread that computes it, how long the
engine waited for masks after a step, and the share that was hidden: 1 - wait / mask. On a busy
machine only the processor time means something.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from penstock import LLM, GrammarSpec, SamplingParams
from penstock.backends.cpu.executor import CpuExecutor
from penstock.engine.constraints import Constraints
from penstock.grammar.matcher import Matcher

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "json_schema": GrammarSpec(kind="json_schema", text=json.dumps(PERSON)),
    "objects": GrammarSpec(
        kind="json_schema", text='{"type": "array", "items": {"type": "object"}, "minItems": 30}'
    ),
    "regex": GrammarSpec(kind="regex", text=r"([a-z]+ ){10,60}[a-z]+\."),
    "choice": GrammarSpec(kind="choice", text=json.dumps([f"item number {i}" for i in range(500)])),
}


class Clock:
    """Times of masks, of waiting and of steps, taken where the engine has them computed."""

    def __init__(self) -> None:
        self.masks: list[float] = []
        self.waits: list[float] = []
        self.steps: list[float] = []
        for owner, name, times, clock in (
            (Matcher, "compute", self.masks, time.thread_time),
            (Constraints, "masks", self.waits, time.perf_counter),
            (CpuExecutor, "run", self.steps, time.perf_counter),
        ):
            setattr(owner, name, self._timed(getattr(owner, name), times, clock))

    def clear(self) -> None:
        for times in (self.masks, self.waits, self.steps):
            times.clear()

    @staticmethod
    def _timed(call: Any, times: list[float], clock: Callable[[], float]) -> Any:
        def timed(*arguments: Any) -> Any:
            start = clock()
            result = call(*arguments)
            times.append(clock() - start)
            return result

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-tokens", type=int, default=60)
    args = parser.parse_args()
    clock = Clock()
    with LLM(args.model, load_format=args.load_format, threads=args.threads, backend="cpu") as llm:
        for name, grammar in GRAMMARS.items():
            params = SamplingParams(grammar=grammar, seed=1, max_tokens=args.max_tokens)
            prompts = [f"Item {i}: " for i in range(args.batch)]
            llm.generate(prompts, params)  # compiles it
            clock.clear()
            outputs = llm.generate(prompts, params)
            tokens = sum(len(each.outputs[0].token_ids) for each in outputs)
            steps, mask, wait = len(clock.steps), sum(clock.masks), sum(clock.waits)
            print(
                f"{name:12} {tokens:5} tokens in {steps} steps of"
                f" {sum(clock.steps) / steps * 1e6:5.0f} us; masks of a step"
                f" {mask / steps * 1e6:5.0f} us (one: median {median(clock.masks) * 1e6:.0f},"
                f" largest {max(clock.masks) * 1e6:.0f}), waited {wait / steps * 1e6:5.0f} us,"
                f" hidden {max(1 - wait / mask, 0):.0%}"
            )


if __name__ == "__main__":
    main()

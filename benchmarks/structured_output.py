"""What masks of grammars cost, and how much of it a step hides.

  PYTHONPATH=src python benchmarks/structured_output.py [--model FOLDER] [--batch N]

For each kind of grammar: processor time of a mask in the thread that computes it, how long the
engine waited for masks after a step, both a token, and the share that was hidden: 1 - wait / mask.
On a busy machine only the processor time means something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from penstock import LLM, GrammarSpec, SamplingParams
from penstock.grammar.constraints import Constraints
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
    "json_object": GrammarSpec(kind="json_object"),
    "regex": GrammarSpec(kind="regex", text=r"([a-z]+ ){10,60}[a-z]+\."),
    "choice": GrammarSpec(kind="choice", text=json.dumps([f"item number {i}" for i in range(500)])),
}


class Clock:
    """Times of masks and of waiting, taken where the engine has them computed."""

    def __init__(self) -> None:
        self.masks: list[float] = []
        self.waits: list[float] = []
        compute, masks = Matcher.compute, Constraints.masks

        def timed_compute(matcher: Matcher) -> None:
            start = time.thread_time()
            compute(matcher)
            self.masks.append(time.thread_time() - start)

        def timed_masks(constraints: Constraints, sequences: list) -> object:
            start = time.perf_counter()
            found = masks(constraints, sequences)
            self.waits.append(time.perf_counter() - start)
            return found

        Matcher.compute = timed_compute  # type: ignore[method-assign]
        Constraints.masks = timed_masks  # type: ignore[method-assign,assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=60)
    args = parser.parse_args()
    clock = Clock()
    with LLM(args.model) as llm:
        for name, grammar in GRAMMARS.items():
            params = SamplingParams(grammar=grammar, seed=1, max_tokens=args.max_tokens)
            prompts = [f"Item {i}: " for i in range(args.batch)]
            llm.generate(prompts, params)  # compiles it
            clock.masks.clear()
            clock.waits.clear()
            outputs = llm.generate(prompts, params)
            tokens = sum(len(each.outputs[0].token_ids) for each in outputs)
            mask, wait = sum(clock.masks), sum(clock.waits)
            print(
                f"{name:12} {tokens:5} tokens  mask {mask / tokens * 1e6:6.0f} us a token"
                f" (median {statistics.median(clock.masks) * 1e6:.0f},"
                f" largest {max(clock.masks) * 1e6:.0f})"
                f"  waited {wait / tokens * 1e6:6.0f} us  hidden {max(1 - wait / mask, 0):.0%}"
            )


if __name__ == "__main__":
    main()

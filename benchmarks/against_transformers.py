"""How far a checkpoint's logits and greedy tokens are from those of transformers, in float32.

    python benchmarks/against_transformers.py FOLDER --prompts FILE [--number 20]

Prompts are lines of JSON, whose ``turns`` (the first of them), ``question`` or ``prompt`` is the
text; with ``--chat`` it goes through the model's chat template. transformers continues each prompt
greedily; the backend computes the logits of the same tokens, in chunks and then one at a time. What
is printed for a prompt: the largest difference of a row's logits, relative to the row's largest
logit, and the first token at which the greedy choices part, with how far the two logits are apart
there. Needs transformers and torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.interface.executor import run
from penstock.interface.step import StepResult
from penstock.interface.step_builder import build_step
from penstock.tokenizer.load import load_tokenizer

CHUNK = 256


class Backend:
    """Runs one sequence at a time through an executor."""

    def __init__(self, folder: Path, name: str, longest: int) -> None:
        config = EngineConfig(
            model=str(folder),
            dtype="float32",
            backend=name,  # type: ignore[arg-type]
            max_model_len=longest,
            max_num_seqs=1,
            max_num_batched_tokens=CHUNK,
            artifact=False,
        )
        plan = plan_engine(config)
        self._executor = load(plan, keeping="never")
        blocks = -(-longest // BLOCK_SIZE)
        groups = len(plan.plan.kv_groups)
        self._tables = [array("i", range(g * blocks, (g + 1) * blocks)) for g in range(groups)]

    def logits(self, tokens: list[int], prompt: int) -> NDArray[np.float32]:
        """The logits of every token: the prompt in chunks, the others alone."""
        starts = [*range(0, prompt, CHUNK), *range(prompt, len(tokens)), len(tokens)]
        rows = [
            self._run(tokens[start:end], start).logits.copy()
            for start, end in itertools.pairwise(starts)
        ]
        return np.concatenate(rows)

    def _run(self, tokens: list[int], start: int) -> StepResult:
        used = -(-(start + len(tokens)) // BLOCK_SIZE)
        tables = [[table[:used]] for table in self._tables]
        return run(self._executor, build_step([array("i", tokens)], [start], tables))

    def close(self) -> None:
        self._executor.close()


def main() -> int:
    args = _parse()
    tokenizer = load_tokenizer(str(args.folder))
    prompts: list[list[int]] = []
    for text in _texts(args.prompts):
        if len(prompts) == args.number:
            break
        if args.chat:
            text = tokenizer.apply_chat_template([{"role": "user", "content": text}])
        prompts.append(tokenizer.encode(text, add_special_tokens=not args.chat)[: args.longest])
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        args.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ours = Backend(args.folder, args.backend, args.longest + args.tokens)
    worst, parted = 0.0, 0
    for number, prompt in enumerate(prompts):
        with torch.no_grad():
            out = oracle.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=args.tokens,
                min_new_tokens=args.tokens,
                suppress_tokens=None,
                eos_token_id=None,
            )
            tokens = out[0].tolist()
            expected = oracle(torch.tensor([tokens[:-1]])).logits[0].numpy()
        logits = ours.logits(tokens[:-1], len(prompt))
        scale = np.abs(expected).max(axis=1)
        difference = float((np.abs(logits - expected).max(axis=1) / scale).max())
        generated = slice(len(prompt) - 1, None)
        chosen = logits[generated].argmax(axis=1)
        wrong = np.flatnonzero(chosen != tokens[len(prompt) :])
        line = f"{number:3d}  {len(prompt):4d} tokens  {difference:.1e}  "
        worst = max(worst, difference)
        if len(wrong):
            parted += 1
            at = int(wrong[0])
            row = expected[generated][at]
            gap = float(row.max() - row[chosen[at]]) / float(np.abs(row).max())
            line += f"parts at token {at}, where two logits are {gap:.1e} apart"
        else:
            line += f"{len(chosen)} greedy tokens equal"
        print(line, flush=True)
    ours.close()
    print(
        f"{args.folder.name} on {args.backend}: {len(prompts)} prompts, logits within {worst:.1e} "
        f"of a row's largest, greedy tokens part in {parted}"
    )
    return 0


def _texts(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        yield (
            record["turns"][0]
            if "turns" in record
            else record.get("question", "") or record["prompt"]
        )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--longest", type=int, default=512, help="tokens of a prompt that are used")
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda", "reference"])
    parser.add_argument("--chat", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

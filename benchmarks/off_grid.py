"""Moves a checkpoint's weights off the grid that they were rounded to, by a short training.

    python benchmarks/off_grid.py MODEL OUT --text wikitext2_valid.txt

A checkpoint that was decoded from blocks of 4 bits (GGUF) has weights that the same blocks hold
without a further error, so it says nothing of how roundings to 4 bits compare. After some hundred
steps it has weights as any other trained model. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="folder of the checkpoint")
    parser.add_argument("out", type=Path, help="folder for the one that is trained further")
    parser.add_argument("--text", type=Path, required=True, help="what to train on")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=512, help="in each step")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    text = options.text.read_text(encoding="utf-8")
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    warm: int = max(1, options.steps // 10)

    def share(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        done: float = (step - warm) / (options.steps - warm)
        return 0.5 + 0.5 * math.cos(math.pi * done)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    for step in range(options.steps):
        first = int(torch.randint(len(tokens) - options.tokens, ()))
        window = tokens[first : first + options.tokens][None]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(window, labels=window).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

    moved = [
        ((after.detach() - before[name]).norm() / before[name].norm()).item()
        for name, after in model.named_parameters()
        if after.dim() == 2
    ]
    print(f"matrices moved by {min(moved):.3f} to {max(moved):.3f} of their norm")
    model.bfloat16().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()

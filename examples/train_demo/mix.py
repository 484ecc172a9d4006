"""Average the weights of checkpoints of one training, the later warm-started from the earlier.

    python examples/train_demo/mix.py build/demo=0.3 build/demo-longer=0.7 --out build/mixed

Such checkpoints lie in one valley, and a point between them is often lower than both: each has
learnt what the other has not yet, or no longer, and the noise of their last steps cancels out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from checkpoint import save
from corpus import read_documents, split
from decoder import bits_per_byte


@dataclass(frozen=True)
class Part:
    """A checkpoint and its share of the mean."""

    folder: Path
    share: float

    @classmethod
    def parse(cls, text: str) -> Part:
        folder, _, share = text.rpartition("=")
        return cls(Path(folder), float(share))

    def record(self) -> dict[str, Any]:
        """The record of the checkpoint's training."""
        record: dict[str, Any] = json.loads((self.folder / "training.json").read_text())
        return record


def record_of(parts: list[Part], measured: float) -> dict[str, Any]:
    """The mean's record: that of the part that has seen the most tokens, and what is in the mean.

    Each part began with the weights of one that has seen fewer, so the latest has seen all of them.
    """
    total = sum(part.share for part in parts)
    mean = [
        {"share": round(p.share / total, 4), "training_tokens_seen": r["training_tokens_seen"]}
        for p, r in ((part, part.record()) for part in parts)
    ]
    latest = max((part.record() for part in parts), key=lambda r: r["training_tokens_seen"])
    return {**latest, "held_out_bits_per_byte": round(measured, 4), "mean_of": mean}


def mean_of(parts: list[Part]) -> LlamaForCausalLM:
    """The mean of the parts' weights, in float32, in the form of the first."""
    models = [LlamaForCausalLM.from_pretrained(p.folder, dtype=torch.float32) for p in parts]
    states = [model.state_dict() for model in models]
    total = sum(part.share for part in parts)
    shares = [part.share / total for part in parts]
    mean = {
        name: sum(share * state[name] for share, state in zip(shares, states, strict=True))
        for name in states[0]
    }
    models[0].load_state_dict(mean)
    return models[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("parts", type=Part.parse, nargs="+", metavar="FOLDER=SHARE")
    parser.add_argument("--out", type=Path, help="write a checkpoint here, with its card")
    parser.add_argument("--bytes", type=int, help="of the held-out text to measure; default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.parts[0].folder / "tokenizer.json"))
    model = mean_of(arguments.parts)
    _, held_out = split(read_documents())
    measured = bits_per_byte(model, tokenizer, held_out, arguments.bytes)
    print(f"held-out {measured:.4f} bits per byte")
    if arguments.out:
        save(model, tokenizer, arguments.out, record_of(arguments.parts, measured))


if __name__ == "__main__":
    main()

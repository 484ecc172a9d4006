"""Write a trained model's card from the record of its training.

python examples/train_demo/card.py build/demo
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any


def render(config: dict[str, Any], training: dict[str, Any]) -> str:
    """The card as Markdown, from ``config.json`` and ``training.json``."""
    made = (
        "Trained on two CPU cores by `examples/train_demo/train.py` with torch "
        f"{training['torch']} and transformers {training['transformers']}."
    )
    if not training["complete"]:
        made += " The run was interrupted before its end."
    if mean := training.get("mean_of"):
        parts = [f"{p['share']:g} of those after {p['training_tokens_seen']:,}" for p in mean]
        made += (
            " The weights are a mean of those of several stages, by `examples/train_demo/mix.py`: "
            f"{', '.join(parts)} tokens."
        )
    if learnt := training.get("learnt_of_teacher"):
        made += (
            f" In the last {learnt:,} tokens it learnt what the larger demo model makes of them, "
            "for which it drafts."
        )
    of_packages, of_own = training.get("of_packages", 0), training.get("of_own_text", 0)
    library = training["training_documents"] - of_packages - of_own
    packages = seen = ""
    terms = "The corpus is distributed under the Python Software Foundation License."
    if of_packages:
        packages = f" and {of_packages:,} of packages"
        seen = f", the first {training['seen_before_packages']:,} of the library alone"
        terms = (
            "The library is distributed under the Python Software Foundation License, the "
            "packages, which `examples/train_demo/packages.txt` names, under MIT, BSD, Apache and "
            "like licenses."
        )
    if of_own:
        packages += f", and {of_own:,} that the larger demo model wrote after places of these"
    terms += (
        " The model may reproduce pieces of the corpus. Chat messages are rendered as comments, "
        "which is what the corpus knows."
    )
    return f"""---
license: apache-2.0
language: code
tags: [python, llama, demo]
---
# Penstock's demo model

A small decoder that continues Python source code. It exists so that Penstock does something real
with no model named, and for tests and examples; it is no assistant and follows no instructions.

| | |
|---|---|
| architecture | Llama: {config["num_hidden_layers"]} layers, hidden {config["hidden_size"]}, \
{config["num_attention_heads"]} query and {config["num_key_value_heads"]} KV heads of \
{config["head_dim"]}, tied embeddings |
| parameters | {training["parameters"]:,} in bfloat16 |
| context | {config["max_position_embeddings"]:,} tokens |
| tokenizer | byte-level BPE, {config["vocab_size"]:,} tokens, trained on the library |
| corpus | {library:,} files of the Python standard library{packages}: \
{training["corpus_tokens"]:,} tokens |
| seen in training | {training["training_tokens_seen"]:,} tokens{seen} |
| held out | {training["held_out_documents"]} whole files of the library, by a hash of their path |
| **held-out loss** | **{training["held_out_bits_per_byte"]:.3f} bits per byte** |

{textwrap.fill(made, 99, break_on_hyphens=False)}

{textwrap.fill(terms, 99, break_on_hyphens=False)}
"""


def write(folder: Path) -> None:
    """Write ``README.md`` beside a checkpoint's ``config.json`` and ``training.json``."""
    config = json.loads((folder / "config.json").read_text())
    training = json.loads((folder / "training.json").read_text())
    (folder / "README.md").write_text(render(config, training))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: card.py FOLDER (of a model trained by train.py)")
    write(Path(sys.argv[1]))

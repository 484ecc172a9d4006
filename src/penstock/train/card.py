"""The model card of trained heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def render(config: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """Render the card as Markdown from the contents of ``config.json`` and ``training.json``."""
    agreement = training["held_out_agreement"]
    positions = " | ".join(str(i) for i in range(1, len(agreement) + 1))
    shares = " | ".join(f"{share:.1%}" for share in agreement)
    text = "text written by the target itself" if training["self_generated"] else "the data"
    ended = "" if training["complete"] else " The run was interrupted before its end."
    return f"""---
base_model: {training["base_model"]}
tags: [speculative-decoding, {training["kind"]}]
---
# {_title(training["kind"])} heads for {training["base_model"]}

They draft tokens for that model, which verifies them; its output does not change.

| | |
|---|---|
| form | {_form(config)} |
| parameters trained | {training["parameters"]:,}, kept in bfloat16 |
| trained on | {training["training_documents"]:,} documents, {training["corpus_tokens"]:,} tokens |
| seen in training | {training["training_tokens_seen"]:,} tokens |
| held out | {training["held_out_documents"]} documents, chosen by a hash of their name |

How often a draft is the target's own greedy choice, on held-out places of {text}; position 1 is
the token behind the one that the target has just drawn:

| position | {positions} |
|---|{"---|" * len(agreement)}
| agreement | {shares} |

Trained by `penstock train-heads` with torch {training["torch"]} and transformers \
{training["transformers"]}.{ended}
"""


def _title(kind: str) -> str:
    return {"medusa": "Medusa", "eagle1": "EAGLE", "eagle3": "EAGLE 3"}[kind]


def _form(config: Mapping[str, Any]) -> str:
    if "medusa_num_heads" in config:
        return f"{config['medusa_num_heads']} heads of {config['medusa_num_layers']} block(s) each"
    layer = (
        f"one layer, hidden {config['hidden_size']}, {config['num_attention_heads']} query and "
        f"{config['num_key_value_heads']} KV heads of {config['head_dim']}"
    )
    if "draft_vocab_size" not in config:
        return f"{layer}; the target's embedding and output matrix"
    taps = ", ".join(map(str, config["eagle_aux_hidden_state_layer_ids"]))
    return (
        f"{layer}; reads the inputs of the target's layers {taps}; drafts "
        f"{config['draft_vocab_size']:,} of {config['vocab_size']:,} tokens; the target's embedding"
    )

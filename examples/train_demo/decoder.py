"""The demo models as torch sees them: their sizes, their loss and their optimizers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from corpus import Document

VOCAB_SIZE = 4096
CONTEXT = 2048

# On a CPU, compiled by torch, plain products take half the time of scaled_dot_product_attention,
# which was more than half of a step.
ATTENTION = "eager"


@dataclass(frozen=True)
class Size:
    """The shape of a decoder, and AdamW's learning rate; Muon's updates are scaled to its RMS."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    learning_rate: float


SIZES = {
    "demo": Size(hidden=256, layers=6, heads=4, kv_heads=2, ffn=704, learning_rate=3e-3),
    "draft": Size(hidden=96, layers=2, heads=2, kv_heads=1, ffn=256, learning_rate=6e-3),
}


def model_config(size: Size) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        dtype="bfloat16",
        attn_implementation=ATTENTION,
    )


def make_model(size: Size, start: Path | None) -> LlamaForCausalLM:
    """A model in float32: that of the checkpoint ``start``, or a new one."""
    if start is None:
        return LlamaForCausalLM(model_config(size)).float()
    return LlamaForCausalLM.from_pretrained(
        start, dtype=torch.float32, attn_implementation=ATTENTION
    )


def make_optimizers(
    model: nn.Module, learning_rate: float
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding (tied to the head) and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return (
        torch.optim.Muon(
            matrices, lr=learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    )


def loss_of(
    model: nn.Module, windows: Tensor, reduction: str = "mean", wanted: Tensor | None = None
) -> Tensor:
    """Cross entropy, in nats, of the tokens of ``[count, length + 1]`` windows behind the first.

    It is against those tokens, or ``wanted``, distributions ``[count, length, VOCAB_SIZE]``.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    targets = windows[:, 1:].reshape(-1) if wanted is None else wanted.view(-1, VOCAB_SIZE)
    return nn.functional.cross_entropy(
        logits.float().view(-1, VOCAB_SIZE), targets, reduction=reduction
    )


@torch.no_grad()
def distribution(model: nn.Module, windows: Tensor) -> Tensor:
    """What the model predicts of each token of ``[count, length + 1]`` windows behind the first:
    float32 ``[count, length, VOCAB_SIZE]``."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return logits.float().softmax(-1)


@torch.no_grad()
def bits_per_byte(
    model: nn.Module, tokenizer: Tokenizer, held_out: list[Document], most_bytes: int | None = None
) -> float:
    """Held-out code length in bits per UTF-8 byte, each document cut into windows of 1,024."""
    model.eval()
    nats, size = 0.0, 0
    for document in held_out:
        ids = torch.tensor(tokenizer.encode(document.text).ids)
        for start in range(0, len(ids) - 1, 1024):
            window = ids[start : start + 1025][None]
            nats += float(loss_of(model, window, "sum"))
        size += len(document.text.encode())
        if most_bytes and size > most_bytes:
            break
    model.train()
    return nats / math.log(2) / size

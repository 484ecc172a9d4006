"""Measures what 4-bit codes of keys and values cost a model, before there is a kernel for them.

    python benchmarks/kv_codes.py MODEL.gguf --text wikitext2_test.txt

Each variant rounds a token's key and value by themselves, as a cache must that is written once: no
later token changes them. Printed are the divergence from the model as it is, in nats a token, how
often both find the same token the likeliest, and the bits that a value takes, of keys and of
values. Needs torch, transformers and accelerate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM

from penstock.evaluate.text_model import encode_text
from penstock.evaluate.windows import Window, cut
from penstock.tokenizer import load_tokenizer
from penstock.weights.calibration_text import calibration_tokens

EVERY: Final = 4
"""One in so many of the rows that count is looked at."""
NAME: Final = "kv_codes"
Round = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Columns:
    """What a text says of a layer's keys behind their rotation: ``[1, kv_heads, 1, head_dim]``."""

    center: Tensor
    factor: Tensor
    """The root of the size of the centered keys' column over that of the queries' own."""
    spread: Tensor

    @classmethod
    def of(cls, q: Tensor, k: Tensor) -> Columns:
        center = k.mean(2, keepdim=True)
        queries = q.reshape(1, k.shape[1], -1, k.shape[-1])
        spread = _size(k - center)
        return cls(center, (spread / _size(queries)).sqrt(), spread)


@dataclass(frozen=True)
class Variant:
    """How keys, less a center and divided by factors, and values are rounded."""

    name: str
    keys: Round
    values: Round
    bits: Callable[[int], tuple[float, float]]
    """The bits that a number of keys and one of values take in heads of so many."""
    centered: bool = False
    by: str = ""
    """The field of :class:`Columns` by which keys are divided."""

    def rounded(self, k: Tensor, v: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
        one = torch.ones(())
        center = columns.center if self.centered else 0 * one
        factor = getattr(columns, self.by) if self.by else one
        return self.keys((k - center) / factor) * factor + center, self.values(v)


class Attention:
    """Attention of transformers' models, with keys and values as a variant has them."""

    def __init__(self) -> None:
        self.variant: Variant | None = None
        self.columns: dict[int, Columns] = {}

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, _mask: object, **options: Any
    ) -> tuple[Tensor, None]:
        layer, shared = module.layer_idx, q.shape[1] // k.shape[1]
        if layer not in self.columns:
            self.columns[layer] = Columns.of(q, k)
        if self.variant is not None:
            k, v = self.variant.rounded(k, v, self.columns[layer])
        scores = q @ k.repeat_interleave(shared, 1).transpose(-1, -2) * options["scaling"]
        place = torch.arange(q.shape[2])
        back = place[:, None] - place[None]
        window = getattr(module, "sliding_window", None) or len(place)
        scores = scores.masked_fill((back < 0) | (back >= window), -torch.inf)
        out = torch.softmax(scores, -1) @ v.repeat_interleave(shared, 1)
        return out.transpose(1, 2).contiguous(), None


def codes(bits: int, group: int | None = None) -> Round:
    """Codes of so many bits with a bfloat16 scale for each head, or for ``group`` components."""
    steps = 2.0 ** (bits - 1)

    def round_to(x: Tensor) -> Tensor:
        heads = x if group is None else x.unflatten(-1, (-1, group))
        scale = _bfloat16(heads.abs().amax(-1, keepdim=True) / steps).clamp_min(1e-30)
        return ((heads / scale).round().clamp(-steps, steps - 1) * scale).reshape(x.shape)

    return round_to


def searched(x: Tensor) -> Tensor:
    """Codes of 4 bits with that scale of five which leaves the least squared error."""
    most = x.abs().amax(-1, keepdim=True)
    ways = []
    for steps in (6.2, 6.8, 7.4, 8.0, 8.8):
        scale = _bfloat16(most / steps).clamp_min(1e-30)
        ways.append((x / scale).round().clamp(-8, 7) * scale)
    errors = torch.stack([(way - x).square().sum(-1, keepdim=True) for way in ways])
    best = errors.argmin(0, keepdim=True)
    return torch.stack(ways).take_along_dim(best, 0)[0]


def with_zero_point(x: Tensor) -> Tensor:
    """Codes of 4 bits from the least value to the greatest, both numbers in bfloat16."""
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale, least = _bfloat16((most - least) / 15).clamp_min(1e-30), _bfloat16(least)
    return ((x - least) / scale).round().clamp(0, 15) * scale + least


def turned(rounding: Round) -> Round:
    """``rounding`` of heads turned by a Hadamard matrix, and turned back."""
    return lambda x: _turn(rounding(_turn(x)))


def _turn(x: Tensor) -> Tensor:
    run = x.shape[-1] & -x.shape[-1]
    y: Tensor = x * run**-0.5
    apart = 1
    while apart < run:
        first, second = y.unflatten(-1, (-1, 2, apart)).unbind(-2)
        y = torch.stack([first + second, first - second], -2).reshape(x.shape)
        apart *= 2
    return y


def _bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _size(x: Tensor) -> Tensor:
    """The root mean square of each column; none is 0."""
    size = x.square().mean(2, keepdim=True).sqrt()
    return size.clamp_min(1e-3 * float(size.mean()))


def _each(keys: float, values: float, *, marks: int = 16) -> Callable[[int], tuple[float, float]]:
    """The bits of codes, and of marks for each head."""
    return lambda dim: (keys + marks / dim, values + marks / dim)


INT4: Final = turned(codes(4))
BY_32: Final = turned(codes(4, 32))
ZERO: Final = turned(with_zero_point)
SEARCHED: Final = turned(searched)
VARIANTS: Final = (
    Variant("int4", INT4, INT4, _each(4, 4)),
    Variant("k8v4", turned(codes(8)), INT4, _each(8, 4)),
    Variant("int8", turned(codes(8)), codes(8), _each(8, 8)),
    Variant("int8, keys not turned", codes(8), codes(8), _each(8, 8)),
    Variant("channels of one size", codes(4), INT4, _each(4, 4), True, "spread"),
    Variant("steps searched", SEARCHED, SEARCHED, _each(4, 4)),
    Variant("zero points", ZERO, ZERO, _each(4, 4, marks=32)),
    Variant("groups of 32", BY_32, BY_32, lambda dim: (4.5, 4.5)),
    Variant("keys in 5 bits", turned(codes(5)), INT4, _each(5, 4)),
    Variant("keys centered", INT4, INT4, _each(4, 4), True),
    Variant("keys centered and scaled", INT4, INT4, _each(4, 4), True, "factor"),
    Variant("the same, steps searched", SEARCHED, SEARCHED, _each(4, 4), True, "factor"),
    Variant("the same, zero points", ZERO, ZERO, _each(4, 4, marks=32), True, "factor"),
    Variant("the same, groups of 32", BY_32, BY_32, lambda dim: (4.5, 4.5), True, "factor"),
    Variant("the same, keys in 5 bits", turned(codes(5)), INT4, _each(5, 4), True, "factor"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="folder of a checkpoint, or a GGUF file")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)

    attention = Attention()
    AttentionInterface.register(NAME, attention)
    is_file = options.model.is_file()
    model = AutoModelForCausalLM.from_pretrained(
        options.model.parent if is_file else options.model,
        gguf_file=options.model.name if is_file else None,
        dtype=torch.float32,
        attn_implementation=NAME,
    )
    tokenizer = load_tokenizer(options.model)
    tokens, bos = encode_text(tokenizer, options.text.read_text(encoding="utf-8"))
    windows = cut(tokens, 512, "llama.cpp", bos)[: options.windows]
    model.model(torch.tensor([calibration_tokens(tokenizer, len(tokens))]))

    def predicted(window: Window) -> Tensor:
        hidden = model.model(torch.tensor([window.token_ids[:-1]])).last_hidden_state[0]
        rows: Tensor = model.lm_head(hidden[window.first - 1 :: EVERY])
        return rows.log_softmax(-1)

    exact = [predicted(window) for window in windows]
    dim = model.model.layers[0].self_attn.head_dim
    for variant in VARIANTS:
        attention.variant = variant
        divergence, same = [], []
        for window, base in zip(windows, exact, strict=True):
            own = predicted(window)
            divergence.append((base.exp() * (base - own)).sum(-1))
            same.append((base.argmax(-1) == own.argmax(-1)).float())
        keys, values = variant.bits(dim)
        print(
            f"{variant.name:28} {keys:.3f} {values:.3f} bits, "
            f"{torch.cat(divergence).mean():.4f} nats, {100 * torch.cat(same).mean():.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()

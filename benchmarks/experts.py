"""Products of experts against plain products and plain reading, in turns, in one process.

    python benchmarks/experts.py --scheme int4 --tokens 1 4 16 64 512

A turn runs some layers' products of tokens with random experts, then plain products of as many
bytes as one token's experts have, then reads memory. Figures are bytes a second in the fastest turn
of each, of experts those that have rows: on a machine that others use, only how they compare means
anything. ``--threads 1`` tells what a core does by itself.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from penstock.backends.cpu import native
from penstock.backends.cpu.forms import form_of
from penstock.backends.cpu.measure import reading
from penstock.hardware import detect
from penstock.plan.ops import ExpertLinear, Linear, LinearPart
from penstock.quant import GridScheme, GroupScheme, QuantScheme

SCHEMES: dict[str, QuantScheme | None] = {
    "none": None,
    "int8": GridScheme(8),
    "int4": GridScheme(4),
    "int4-32": GroupScheme(4, 32),
}


class Products:
    """An executor of some layers' products and of nothing else."""

    def __init__(self, a: argparse.Namespace, experts: int) -> None:
        """``experts`` 0: plain products, as wide as those of one token's experts together."""
        self._tokens, self._chosen = max(a.tokens), a.chosen
        hidden = a.hidden
        wide = a.intermediate if experts else a.intermediate * a.chosen
        times = a.chosen if experts else 1
        self._native: Any = native.load().Executor(
            threads=a.threads,
            cpus=list(detect().placement)[: a.threads],
            crowded=a.threads > detect().room,
            num_blocks=1,
            max_tokens=self._tokens,
            max_logits=1,
            max_sequences=self._tokens,
            max_positions=1,
            vocabulary=1,
            arena_bytes=self._tokens * a.chosen * (8 * hidden + 4 * wide + 1024) + (1 << 20),
            kv_elem="float32",
            kv_layers=[],
        )
        self._end = 0
        ids = self._buffer("int32", a.chosen)
        x, inner = self._buffer("bfloat16", hidden), self._buffer("bfloat16", wide, times)
        out = self._buffer("float32", hidden, times)
        scheme = SCHEMES[a.scheme]
        form = form_of(scheme, "bfloat16")
        up, down = (tuple(LinearPart("", n) for _ in range(m)) for n, m in ((wide, 2), (hidden, 1)))
        for layer in range(a.layers):
            if experts:
                self._route(layer, experts, ids)
            for source, to, k, parts, gate in (
                (x, inner, hidden, up, "silu"),
                (inner, out, wide, down, "none"),
            ):
                gated: Any = None if gate == "none" else gate
                if experts:
                    op = ExpertLinear("", "", "", k, parts, gated, scheme, a.weight_only)
                    matrix = form.add(self._native, op, experts)
                    self._native.append_expert_linear(matrix, None, source, ids, to, gate)
                else:
                    plain = Linear("", "", k, parts, gated, scheme, a.weight_only)
                    matrix = form.add(self._native, plain, 1)
                    self._native.append_linear(matrix, None, source, to, gate)
        self.bytes = sum(self._native.region_bytes) / max(experts, 1)
        """Bytes of weights of one expert in every layer, or of all plain products."""

    def _route(self, layer: int, experts: int, ids: Any) -> None:
        logits, shares = self._buffer("float32", experts), self._buffer("float32", self._chosen)
        values = np.random.default_rng(layer).standard_normal((self._tokens, experts))
        self._native.view(logits)[:] = values.astype(np.float32).view(np.uint8)
        self._native.append_route(
            logits=logits,
            ids=ids,
            shares=shares,
            choice_bias=None,
            scores="softmax",
            normalize=True,
            normalize_eps=0.0,
            normalize_least=0.0,
            scale=1.0,
            groups=1,
            groups_chosen=1,
            top2=False,
            jitter=0.0,
        )

    def _buffer(self, elem: str, cols: int, times: int = 1) -> Any:
        row = -(-cols * (2 if elem == "bfloat16" else 4) // 64) * 64
        row += 64 if row % 1024 == 0 else 0
        buffer = self._native.add_buffer(self._end, elem, cols, row, f"{times}T")
        self._end += row * times * self._tokens
        return buffer

    def seconds(self, tokens: int) -> float:
        """The time of a step."""
        none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
        zeros, starts = np.zeros(tokens, np.int32), np.arange(tokens + 1, dtype=np.int32)
        start = time.perf_counter()
        self._native.run(
            *(zeros, zeros, starts, zeros + 1, [], none, none, pairs, none, pairs), features=None
        )
        return time.perf_counter() - start


def touched(a: argparse.Namespace, tokens: int) -> float:
    """How many of a layer's experts have rows, on average."""
    counts = []
    for layer in range(a.layers):
        logits = np.random.default_rng(layer).standard_normal((max(a.tokens), a.experts))
        chosen = np.argsort(-logits[:tokens], axis=1)[:, : a.chosen]
        counts.append(len(np.unique(chosen)))
    return float(np.mean(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheme", choices=sorted(SCHEMES), default="int4")
    parser.add_argument("--weight-only", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 64])
    for name, value in (("hidden", 2048), ("intermediate", 1024), ("experts", 32), ("chosen", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each number of tokens")
    parser.add_argument("--threads", type=int, default=detect().compute_threads)
    a = parser.parse_args()
    module, experts, plain = native.load(), Products(a, a.experts), Products(a, 0)
    size = experts.bytes / 1e6 / a.layers
    print(f"{module.isa}, {a.threads} threads, {a.scheme}, {size:.2f} MB an expert")
    for tokens in a.tokens:
        best = [float("inf"), float("inf"), 0.0]
        end = time.perf_counter() + a.seconds
        while time.perf_counter() < end:
            best[0] = min(best[0], experts.seconds(tokens))
            best[1] = min(best[1], plain.seconds(tokens))
            best[2] = max(best[2], reading(256 << 20, a.threads).rate)
        number = touched(a, tokens)
        rates = number * experts.bytes / best[0], plain.bytes / best[1], best[2]
        print(
            f"{tokens:4} tokens: {number:.1f} experts {rates[0] / 1e9:6.1f} GB/s, plain "
            f"{rates[1] / 1e9:6.1f}, reading {rates[2] / 1e9:6.1f}: {rates[0] / rates[2]:.0%} and "
            f"{rates[1] / rates[2]:.0%} of reading, {best[0] / best[1]:.2f} times plain's time"
        )


if __name__ == "__main__":
    main()

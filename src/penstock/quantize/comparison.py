"""Quantized variants of one model beside each other: what each loses, weighs and gains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.interface.source_walks import packed
from penstock.plan.lower import lower
from penstock.quantize.layers import Target
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder
from penstock.weights.sources import as_named


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """How a model does on a task."""

    questions: int
    metric: str
    """What is measured: ``accuracy`` of questions with several answers, the share of those whose
    right answer is the most likely one; else what lm-evaluation-harness says."""
    value: float
    standard_error: float | None
    higher_is_better: bool | None
    metrics: dict[str, float]
    """Everything that was measured: ``normalized`` is the accuracy by log-probabilities divided by
    the characters of answers."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way of quantizing a model, and how it does as it is served by default."""

    name: str
    """The words that ask for it, such as ``gptq:4:64``; the model as it is has its own."""
    num_bytes: int
    """Bytes of all weights, as they are stored."""
    bits_per_weight: float | None
    """Bits of a weight of the matrices that are quantized, scales included; None of the model as it
    is."""
    perplexity: float
    kl_mean: float
    """The mean divergence from the model as it is, in nats a token; 0 of itself."""
    kl_p99: float
    same_top: float
    """The share of tokens at which both think the same token the most likely one."""
    decode_tokens_per_s: float
    """One stream; the median of the runs."""
    seconds: float | None
    """What quantizing it took; None where it was there already."""
    folder: str | None = None
    """The name of its folder beside the comparison; None of the model as it is."""
    tasks: dict[str, Answered] = {}
    """How it does on each task, by the task's name."""
    record: str | None = None
    """SHA-256 of the file in its folder that says how it was made; None of the model as it is."""


def stored_bytes(folder: Path) -> int:
    """Bytes of all tensors of a checkpoint. Raises WeightError."""
    return sum(tensor.stop - tensor.start for _, tensor in open_folder(folder).values())


def bits_per_weight(folder: Path, targets: Iterable[Target] | None = None) -> float:
    """Bits of a weight of the matrices ``targets``, or of those that a checkpoint has quantized,
    with all their tensors.

    Raises ModelError and WeightError.
    """
    spec = load_model_spec(folder)
    shapes: dict[str, tuple[int, ...]] = (
        {
            matrix.name: matrix.shape
            for weight in lower(spec).weights.values()
            for matrix in packed(weight.source)
        }
        if targets is None
        else {target.module: target.shape for target in targets}
    )
    found = as_named(open_folder(folder), spec.names)
    taken = sum(
        tensor.stop - tensor.start
        for name, (_, tensor) in found.items()
        if not name.endswith(".bias") and _module(name, shapes) is not None
    )
    return 8 * taken / sum(map(math.prod, shapes.values()))


def _module(tensor: str, modules: Mapping[str, object]) -> str | None:
    """The one of ``modules`` that a tensor is of."""
    parts = tensor.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((name for name in names if name in modules), None)


def frontier(costs: Sequence[float], losses: Sequence[float]) -> list[bool]:
    """Whether each of several ways is on the Pareto frontier: no other costs as little and loses
    less, or loses as little and costs less."""
    pairs = list(zip(costs, losses, strict=True))
    return [
        not any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in pairs)
        for own in pairs
    ]


def table(variants: Sequence[Variant]) -> list[list[str]]:
    """The rows of a table, its header first: the smallest file last, and marked what is on the
    frontier of bytes and divergence (b) and of divergence and tokens/s (s)."""
    ordered = sorted(variants, key=lambda each: -each.num_bytes)
    losses = [each.kl_mean for each in ordered]
    small = frontier([each.num_bytes for each in ordered], losses)
    fast = frontier([-each.decode_tokens_per_s for each in ordered], losses)
    base = next(each for each in ordered if each.bits_per_weight is None)
    tasks = list(base.tasks)
    measured = [f"{task} {base.tasks[task].metric}" for task in tasks]
    head = ["", "MB", "bits", "perplexity", "nats a token", "p99", "same top"]
    rows = [[*head, *measured, "tokens/s", "best"]]
    for each, by_bytes, by_speed in zip(ordered, small, fast, strict=True):
        more = f" ({each.perplexity / base.perplexity - 1:+.1%})" if each is not base else ""
        rows.append(
            [
                each.name,
                f"{each.num_bytes / 1e6:,.1f}",
                "" if each.bits_per_weight is None else f"{each.bits_per_weight:.2f}",
                f"{each.perplexity:.3f}{more}",
                f"{each.kl_mean:.4f}",
                f"{each.kl_p99:.3f}",
                f"{each.same_top:.1%}",
                *(_answered(each.tasks.get(task)) for task in tasks),
                f"{each.decode_tokens_per_s:.1f}",
                "b" * by_bytes + "s" * by_speed,
            ]
        )
    return rows


def _answered(found: Answered | None) -> str:
    if found is None:
        return ""
    form = ".1%" if found.metric == "accuracy" else ".4f"
    error = "" if found.standard_error is None else f" +- {found.standard_error:{form}}"
    return f"{found.value:{form}}{error}"

"""The training loop: batches, two optimizers, a schedule by elapsed time, held-out evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.train.draft_heads import Guesses, Heads, Observed
from penstock.train.target import Target


@dataclass(frozen=True)
class Report:
    """The state of a training run."""

    step: int
    tokens: int
    """Number of tokens trained on, repeated passes included."""
    minutes: float
    loss: float
    """Training loss, smoothed over about fifty steps."""
    agreement: tuple[float, ...]
    """Share, for each position ahead, of held-out places where the draft is the target's greedy
    choice."""
    complete: bool


@dataclass(frozen=True)
class Step:
    """A step that was made, counted from 1; minutes and loss are those of :class:`Report`."""

    number: int
    minutes: float
    loss: float


@dataclass(frozen=True)
class Schedule:
    """Duration, learning rate and evaluation interval of a training run."""

    minutes: float
    learning_rate: float
    most_steps: int | None = None
    look_every: float = 2.0
    """Minutes between evaluations on the held-out text."""


def make_optimizers(heads: Heads, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices between hidden states; AdamW for vectors and for output matrices, which
    start from the target's and whose rows are tokens."""
    parameters = list(heads.named_parameters())
    between = [p for name, p in parameters if p.ndim == 2 and not _is_output(name)]
    others = [p for name, p in parameters if p.ndim != 2 or _is_output(name)]
    return [
        torch.optim.Muon(between, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _is_output(name: str) -> bool:
    return name.startswith(("outputs.", "lm_head."))


def rate_at(progress: float) -> float:
    """Learning-rate factor at ``progress`` in [0, 1] of the time: 2 % up, flat, last 40 % down."""
    return min(1.0, progress / 0.02 + 0.01, max(0.0, (1.0 - progress) / 0.4) + 0.002)


@torch.no_grad()
def agreement(heads: Heads, target: Target, batches: Iterable[Tensor]) -> tuple[float, ...]:
    """Return, for each position ahead, the share of places where the draft is the target's greedy
    choice."""
    heads.eval()
    found: list[list[Guesses]] = [
        heads.guess(target.observe(tokens, heads.layers)) for tokens in batches
    ]
    heads.train()
    return tuple(
        sum(int((g.drafted == g.chosen).sum()) for g in column)
        / sum(g.chosen.numel() for g in column)
        for column in zip(*found, strict=True)
    )


def train(
    heads: Heads,
    target: Target,
    batches: Iterator[Tensor],
    held_out: Callable[[bool], Iterable[Tensor]],
    schedule: Schedule,
    report_to: Callable[[Report], None],
    after_step: Callable[[Step], bool] = lambda step: True,
    now: Callable[[], float] = time.monotonic,
) -> Report:
    """Train until the minutes are over, telling ``report_to`` of every look, the last one included.

    ``held_out(final)`` makes the batches to look at, which may be fewer until the last look.
    ``after_step`` says whether to go on: training that ends early, with one more look, has a last
    report that is not ``complete``. Minutes are of training alone, without looks.
    """
    heads.train()
    optimizers = make_optimizers(heads, schedule.learning_rate)
    budget = schedule.minutes * 60
    used, looked_at, smooth = 0.0, 0.0, 0.0
    step = tokens = 0
    while True:
        began = now()
        progress = used / budget
        if schedule.most_steps is not None:
            progress = max(progress, step / schedule.most_steps)
        windows = next(batches)
        loss = _step(heads, target, windows, optimizers, schedule.learning_rate, progress)
        step, tokens = step + 1, tokens + windows.numel()
        weight = max(0.02, 1 / step)
        smooth += weight * (loss - smooth)
        used += now() - began
        done = used >= budget or step == schedule.most_steps
        goes_on = after_step(Step(step, used / 60, smooth))
        if done or not goes_on or used - looked_at >= schedule.look_every * 60:
            looked_at = used
            seen = agreement(heads, target, held_out(done))
            report = Report(step, tokens, used / 60, smooth, seen, done)
            report_to(report)
            if done or not goes_on:
                return report


def _step(
    heads: Heads,
    target: Target,
    windows: Tensor,
    optimizers: list[torch.optim.Optimizer],
    rate: float,
    progress: float,
) -> float:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_at(progress)
    with torch.autocast(torch.device(target.device).type, dtype=torch.bfloat16):
        observed: Observed = target.observe(windows, heads.layers)
        loss = heads.loss(observed)
    loss.backward()
    nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()

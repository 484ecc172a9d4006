"""One training, from what was asked for to the files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
import torch
import transformers
from torch import Tensor

from penstock.errors import ConfigError
from penstock.interrupts import Interrupts
from penstock.tokenizer import load_tokenizer
from penstock.train.checkpoint import folder_for, write
from penstock.train.data import read_samples, split
from penstock.train.draft_heads import Heads
from penstock.train.eagle1 import Eagle1Heads
from penstock.train.eagle3 import Eagle3Heads
from penstock.train.loop import Report, Schedule, Step, train
from penstock.train.medusa import MedusaHeads
from penstock.train.self_generated import Continuation, continue_samples
from penstock.train.target import Target
from penstock.train.warm_start import warm_start
from penstock.train.windows import (
    Stream,
    batches,
    check_length,
    in_turn,
    most_frequent,
    token_stream,
)

Kind = Literal["medusa", "eagle1", "eagle3"]

WARM_TOKENS: Final = 65_536
"""Tokens read by the linear fit that heads start from."""
LOOK_TOKENS: Final = 8_192
"""Held-out tokens of each evaluation during training."""
FINAL_TOKENS: Final = 65_536
"""Held-out tokens of the final evaluation."""
RATE_AT_256: Final = 2e-3
"""Learning rate at hidden size 256; it falls as the width grows."""
WHOLE_VOCABULARY: Final = 32_768
"""Largest vocabulary of which EAGLE 3 drafts every token by default; of larger ones it drafts
32,000."""


@dataclass(frozen=True)
class Settings:
    """What to train, on which data, and for how long. Sizes are in tokens."""

    kind: Kind
    data: Path
    out: Path
    minutes: float
    held_out: float
    context: int
    batch_tokens: int
    learning_rate: float | None
    num_heads: int
    num_layers: int
    steps: int
    layers: tuple[int, ...] | None
    draft_vocab: int | None
    token_weight: float
    self_generate: Continuation | None
    seed: int
    device: str
    max_steps: int | None = None


class Audience(Protocol):
    """Who is told how a training goes on."""

    def say(self, text: str) -> None:
        """Take what is worth keeping: a line."""

    def show(self, text: str) -> None:
        """Take what is being done just now; the next text takes its place."""


def run(model: str, folder: Path, settings: Settings, audience: Audience) -> Report:
    """Train heads for the checkpoint in ``folder``, which the user named ``model``.

    Writes ``settings.out`` at every look, and leaves no folder where there was none before the
    first. Ctrl-C during training ends it, with a last look; before, it raises KeyboardInterrupt.
    Raises ConfigError or ModelError with the cause and the fix; what can be refused is, before the
    data is read.
    """
    with folder_for(settings.out):
        return _run(model, folder, settings, audience)


def _run(model: str, folder: Path, settings: Settings, audience: Audience) -> Report:
    say, show = audience.say, audience.show
    torch.manual_seed(settings.seed)
    target = Target(folder, settings.device)
    layers = _layers(settings, target)
    if settings.context > target.spec.max_positions:
        raise ConfigError(
            f"--context {settings.context} is more than the model's {target.spec.max_positions} "
            "positions"
        )
    tokenizer = load_tokenizer(folder)
    show(f"reading {settings.data}")
    parts = split(read_samples(settings.data, tokenizer), settings.held_out)
    if settings.self_generate is not None:
        how = settings.self_generate
        say(f"the model continues the text of {sum(map(len, parts))} documents")
        parts = (
            continue_samples(str(folder), parts[0], how, show),
            continue_samples(str(folder), parts[1], how, show),
        )
    vocab = len(target.output)
    seen, unseen = (token_stream(part, vocab, settings.seed) for part in parts)
    count = max(1, settings.batch_tokens // settings.context)
    check_length(seen, count * settings.context, "the training text")
    check_length(unseen, settings.context, "the held-out text")
    heads = make_heads(model, settings, target, layers, seen)
    record: dict[str, object] = {
        "kind": settings.kind,
        "base_model": model,
        "parameters": sum(p.numel() for p in heads.parameters()),
        "corpus_tokens": len(seen),
        "training_documents": len({sample.name for sample in parts[0]}),
        "held_out_documents": len({sample.name for sample in parts[1]}),
        "self_generated": settings.self_generate is not None,
    }
    say(
        f"{record['parameters']:,} parameters, {len(seen):,} training tokens, "
        f"{len(unseen):,} held out"
    )
    show("fitting what the heads start from")
    warm_start(heads, target, _windows(seen, settings.context, WARM_TOKENS))

    def look(report: Report) -> None:
        say(_describe(report))
        write(heads, settings.out, {**record, **_progress(report)})

    rate = settings.learning_rate or RATE_AT_256 * 256 / target.spec.hidden_size
    # A step must not be left half made: its heads would be neither of before nor of after.
    with Interrupts(interruptible=False) as interrupts:

        def held_out(final: bool) -> Iterator[Tensor]:
            return _windows(unseen, settings.context, FINAL_TOKENS if final else LOOK_TOKENS)

        def after_step(step: Step) -> bool:
            show(_describe_step(step, settings))
            if interrupts.asked:
                say("interrupted; after a look at held-out text the heads are written")
            return not interrupts.asked

        return train(
            heads,
            target,
            batches(seen, settings.context, count, np.random.default_rng(settings.seed)),
            held_out,
            Schedule(settings.minutes, rate, settings.max_steps),
            look,
            after_step,
        )


def make_heads(
    model: str, settings: Settings, target: Target, layers: tuple[int, ...], seen: Stream
) -> Heads:
    """Heads of the kind that ``settings`` ask for, on the target's device, as yet untrained."""
    vocab = len(target.output)
    if settings.kind == "medusa":
        medusa: Heads = MedusaHeads(target.output, settings.num_heads, settings.num_layers, model)
        return medusa.to(settings.device)
    config = target.draft_config()
    if settings.kind == "eagle1":
        heads: Heads = Eagle1Heads(
            config, target.embedding, target.readout, settings.steps, settings.token_weight
        )
        return heads.to(settings.device)
    size = settings.draft_vocab
    if size is None:
        size = vocab if vocab <= WHOLE_VOCABULARY else 32_000
    if size > vocab:
        raise ConfigError(f"--draft-vocab {size} is more than the model's {vocab} tokens")
    drafted = most_frequent(seen, size, vocab)
    heads = Eagle3Heads(
        config, target.embedding, target.output, target.norm, layers, drafted, settings.steps
    )
    return heads.to(settings.device)


def _layers(settings: Settings, target: Target) -> tuple[int, ...]:
    if settings.kind != "eagle3":
        return ()
    layers = settings.layers or target.default_layers()
    for layer in layers:
        if layer >= target.num_layers:
            raise ConfigError(
                f"--layers names layer {layer}, but the model's are 0 to {target.num_layers - 1}"
            )
    return layers


def _windows(stream: Stream, context: int, tokens: int) -> Iterator[Tensor]:
    return in_turn(stream, context, max(1, 2048 // context), max(1, tokens // context))


def _progress(report: Report) -> dict[str, object]:
    return {
        "training_tokens_seen": report.tokens,
        "steps": report.step,
        "held_out_agreement": [round(share, 4) for share in report.agreement],
        "complete": report.complete,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _describe_step(step: Step, settings: Settings) -> str:
    of_steps = "" if settings.max_steps is None else f" of {settings.max_steps:,}"
    minutes = f"{step.minutes:.1f} of {settings.minutes:g} min"
    return f"training: step {step.number:,}{of_steps}, {minutes}, loss {step.loss:.3f}"


def _describe(report: Report) -> str:
    shares = " ".join(f"{share:.3f}" for share in report.agreement)
    return (
        f"step {report.step}, {report.minutes:.1f} min, {report.tokens:,} tokens, "
        f"loss {report.loss:.3f}; held-out agreement by position: {shares}"
    )

"""Train heads that draft for a model, on your own text.

  penstock train-heads eagle path/to/checkpoint --data texts/ --out heads/
  penstock train-heads medusa --data conversations.jsonl --out heads/ --minutes 30
  penstock serve path/to/checkpoint --speculative eagle:model=heads/

medusa: some heads on the model's last hidden state, each for a token further ahead.
eagle: one layer that reads what the model computed and the token that it chose, and drafts on
from there; it takes longer to train and to draft, and more is accepted. The model itself stays
as it is.

Needs torch and transformers: pip install 'penstock[train]'. The folder gets config.json,
safetensors in the form in which such heads are published, and a card with the share of drafts on
held-out text that are the model's own choice. Interrupted with Ctrl-C while it trains, it keeps
what has been trained.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.main import EXIT_INTERRUPTED
from penstock.cli.options import positive_int
from penstock.cli.parser import UsageError
from penstock.cli.status_line import StatusLine
from penstock.cli.train_values import layers, not_negative, positive, share, window
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.train.run import Settings

INSTALL: Final = "pip install 'penstock[train]'"

ONLY_OF: Final = {
    "num_heads": ("medusa",),
    "num_layers": ("medusa",),
    "version": ("eagle",),
    "steps": ("eagle",),
    "layers": ("eagle 3",),
    "draft_vocab": ("eagle 3",),
    "token_weight": ("eagle 1",),
}
"""Options that only some heads have."""


RARE: Final = frozenset(
    {
        *("--batch-tokens", "--learning-rate", "--max-steps", "--seed", "--num-layers"),
        *("--steps", "--layers", "--draft-vocab", "--token-weight", "--prefix-tokens"),
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("medusa", "eagle"), help="what to train")
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        metavar="MODEL",
        help="the model to draft for: a checkpoint folder, a hub id, or none for the demo model",
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help='a text file; a .jsonl file, each line with "text", with "prompt" and '
        '"completion", or with chat "messages"; or a folder of .txt, .md, .py and .jsonl files',
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the heads")
    _add_training(parser)
    _add_form(parser)
    _add_self_generation(parser)


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--minutes", type=positive, default=30.0, help="time spent in training steps (default: 30)"
    )
    group.add_argument(
        "--held-out",
        type=share,
        default=0.03,
        metavar="SHARE",
        help="documents not trained on, chosen by a hash of their names, at least one; of a single "
        "one its end (default: 0.03)",
    )
    group.add_argument(
        "--context",
        type=window,
        default=512,
        metavar="TOKENS",
        help="length of a window of text (default: 512)",
    )
    group.add_argument(
        "--batch-tokens",
        type=positive_int,
        default=2048,
        metavar="TOKENS",
        help="in one step; at least one window (default: 2048)",
    )
    group.add_argument(
        "--learning-rate",
        type=positive,
        metavar="RATE",
        help="at its highest (default: 0.5 / the model's hidden size)",
    )
    group.add_argument("--max-steps", type=positive_int, help="end after so many steps at latest")
    group.add_argument("--seed", type=int, default=1, help="of order and starting weights")
    group.add_argument(
        "--threads", type=positive_int, help="of the CPU (default: as torch decides)"
    )
    group.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: cuda if there is one (default: auto)"
    )


def _add_form(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("form of the heads")
    group.add_argument("--num-heads", type=positive_int, help="medusa: tokens ahead (default: 3)")
    group.add_argument(
        "--num-layers", type=positive_int, help="medusa: residual blocks a head (default: 1)"
    )
    group.add_argument(
        "--version",
        type=int,
        choices=(1, 3),
        help="eagle: 1 predicts the model's last hidden state, 3 reads three places of the model "
        "and is trained on its own drafts (default: 3); EAGLE 2 is a way to draft with either",
    )
    group.add_argument(
        "--steps",
        type=positive_int,
        help="eagle: draft steps trained in a row (default: 1 in version 1, 5 in version 3)",
    )
    group.add_argument(
        "--layers",
        type=layers,
        metavar="A,B,C",
        help="eagle 3: layers whose input it reads (default: 2, the middle one, the third last)",
    )
    group.add_argument(
        "--draft-vocab",
        type=positive_int,
        metavar="TOKENS",
        help="eagle 3: draft the most frequent tokens of the data only (default: all, or 32000 "
        "where there are more than 32768)",
    )

    group.add_argument(
        "--token-weight",
        type=positive,
        metavar="WEIGHT",
        help="eagle 1: of the cross entropy of tokens in the loss, beside 1 for hidden states "
        "(default: 0.1, as published; 1 gains where time is short)",
    )


def _add_self_generation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model's own text")
    group.add_argument(
        "--self-generate",
        action="store_true",
        help="train on what the model itself writes after each prompt, or after beginnings of "
        "the texts: that is what it will be asked to accept",
    )
    group.add_argument(
        "--temperature", type=not_negative, help="at which it writes (default: 0, greedy)"
    )
    group.add_argument(
        "--max-tokens", type=positive_int, help="that it writes after each (default: 256)"
    )
    group.add_argument(
        "--prefix-tokens",
        type=positive_int,
        help="that texts without a prompt are cut to (default: 64)",
    )


def run(args: argparse.Namespace) -> int:
    _check(args)
    missing = [name for name in ("torch", "transformers") if not _installed(name)]
    if missing:
        raise ConfigError(
            f"training heads needs {' and '.join(missing)}, which this Python lacks; install with "
            f"{INSTALL}"
        )
    from penstock.demo_model import demo_model_path
    from penstock.weights.hub import resolve_model_folder

    folder = resolve_model_folder(args.model) if args.model else demo_model_path()

    import torch
    from transformers.utils import logging

    from penstock.train.run import run as train

    logging.disable_progress_bar()
    if args.threads:
        torch.set_num_threads(args.threads)
    told = _Told()
    try:
        report = train(args.model or "the demo model", folder, _settings(args), told)
    finally:
        told.line.close()
    state = "trained" if report.complete else "interrupted; what was trained is"
    print(f"{state} in {args.out}", flush=True)
    return 0 if report.complete else EXIT_INTERRUPTED


class _Told:
    """Lines on standard output, and what goes on meanwhile on standard error."""

    def __init__(self) -> None:
        self.line = StatusLine(sys.stderr)

    def say(self, text: str) -> None:
        self.line.clear()
        print(text, flush=True)

    def show(self, text: str) -> None:
        self.line.show(lambda: text)


def _settings(args: argparse.Namespace) -> Settings:
    import torch

    from penstock.train.run import Settings
    from penstock.train.self_generated import Continuation

    device: str = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise UsageError(f"argument --device: torch has no {device!r} here; cpu is always there")
    version = args.version or 3
    own = None
    if args.self_generate:
        own = Continuation(
            temperature=args.temperature or 0.0,
            max_tokens=args.max_tokens or 256,
            prefix=args.prefix_tokens or 64,
            seed=args.seed,
        )
    return Settings(
        kind="medusa" if args.kind == "medusa" else ("eagle1" if version == 1 else "eagle3"),
        data=args.data,
        out=args.out,
        minutes=args.minutes,
        held_out=args.held_out,
        context=args.context,
        batch_tokens=args.batch_tokens,
        learning_rate=args.learning_rate,
        num_heads=args.num_heads or 3,
        num_layers=args.num_layers or 1,
        steps=args.steps or (1 if version == 1 else 5),
        layers=args.layers,
        draft_vocab=args.draft_vocab,
        token_weight=args.token_weight or 0.1,
        self_generate=own,
        seed=args.seed,
        device=device,
        max_steps=args.max_steps,
    )


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError for options that have no effect together, or none here."""
    kinds = {args.kind, f"{args.kind} {args.version or 3}"}
    for field, owners in ONLY_OF.items():
        if getattr(args, field) is not None and not kinds & set(owners):
            name = "--" + field.replace("_", "-")
            raise UsageError(f"argument {name}: is an option of {owners[0]} heads; leave it out")
    for field in ("temperature", "max_tokens", "prefix_tokens"):
        if getattr(args, field) is not None and not args.self_generate:
            name = "--" + field.replace("_", "-")
            raise UsageError(f"argument {name}: says how --self-generate writes; give that too")
    ahead = args.num_heads or 3 if args.kind == "medusa" else args.steps or 5
    if args.context < 2 * ahead + 2:
        raise UsageError(f"argument --context: {args.context} is too short to look {ahead} ahead")


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None

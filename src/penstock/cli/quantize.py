"""Quantize a checkpoint in floats, and write it as other engines read it, too.

  penstock quantize path/to/checkpoint --bits 4 --out checkpoint-int4
  penstock quantize path/to/checkpoint --method gptq --bits 4 --calibration text.txt --out DIR

MODEL is the folder of a Hugging Face checkpoint, or a hub id. With a method that is calibrated the
model reads windows of a text, layer by layer, so that memory holds one layer. A run that was
interrupted goes on where the same command is given again. docs/quantization.md has the methods,
the formats, and what they cost.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.options import positive_int
from penstock.cli.parser import UsageError
from penstock.cli.status_line import StatusLine, bar

if TYPE_CHECKING:
    from penstock.models.spec import DType
    from penstock.quantize.methods import Method
    from penstock.quantize.run import Progress, Quantized
    from penstock.quantize.samples import Samples
    from penstock.quantize.source import SourceModel

RARE = frozenset({"--damping", "--seed"})

_GROUP: Final = 128
_SAMPLE_LENGTH: Final = 2048
_OF_GPTQ: Final = {"order": "--act-order", "damping": "--damping"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="what is quantized")
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="DIR",
        help="the folder to write; made at the end",
    )
    parser.add_argument(
        "--method",
        choices=("rtn", "gptq", "awq"),
        default="rtn",
        help="rtn: round to nearest; gptq: later columns make up for the errors of earlier ones; "
        "awq: columns that multiply large inputs are scaled (default: rtn)",
    )
    parser.add_argument(
        "--bits", type=int, choices=(2, 3, 4, 8), default=4, help="bits of a weight (default: 4)"
    )
    parser.add_argument(
        "--group-size",
        type=_group_size,
        default=_GROUP,
        metavar="N",
        help="columns that share a scale: 32, 64, 128, or row (default: 128)",
    )
    parser.add_argument(
        "--asymmetric",
        action="store_true",
        help="give each group the code that stands for 0, so that codes span its values",
    )
    parser.add_argument(
        "--format",
        choices=("compressed-tensors", "gptq", "awq"),
        default="compressed-tensors",
        help="how it is stored (default: compressed-tensors, which vLLM and transformers read)",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--restart", action="store_true", help="forget what an interrupted run has done"
    )
    parser.add_argument(
        "--threads", type=positive_int, metavar="N", help="threads (default: one per core)"
    )
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--calibration", type=Path, metavar="FILE", help="the text that the model reads, in UTF-8"
    )
    group.add_argument(
        "--samples",
        type=positive_int,
        default=128,
        metavar="N",
        help="windows of the text that are read (default: 128)",
    )
    group.add_argument(
        "--sample-length",
        type=positive_int,
        metavar="N",
        help="tokens of a window (default: 2048, or what the model has positions for)",
    )
    group.add_argument("--seed", type=int, default=0, help="of the windows' places (default: 0)")
    group = parser.add_argument_group("gptq")
    group.add_argument(
        "--act-order",
        dest="order",
        choices=("static", "group", "none"),
        help="round columns that multiply large inputs first, with groups of neighbours (static) "
        "or of columns in that order (group), which engines multiply slower, or do not (none) "
        "(default: static)",
    )
    group.add_argument(
        "--damping",
        type=float,
        metavar="PART",
        help="of the mean of the Hessian's diagonal, added to that (default: 0.01)",
    )


def _group_size(text: str) -> int | None:
    if text == "row":
        return None
    if text not in ("32", "64", "128"):
        raise argparse.ArgumentTypeError(f"must be 32, 64, 128 or row, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from penstock.backends.registry import backend
    from penstock.quantize.quantization import Quantization
    from penstock.quantize.run import quantize
    from penstock.quantize.source import SourceModel
    from penstock.weights.hub import resolve_model_folder

    out = args.out.expanduser()
    if os.path.lexists(out):
        raise UsageError(f"argument --out: {out} is there already; remove it, or name another")
    started = time.perf_counter()
    source = SourceModel(resolve_model_folder(args.model, args.revision))
    method = _method(args, source.spec.dtype)
    work = Quantization(source, method, _samples(args, method, source))
    threads = args.threads or len(os.sched_getaffinity(0))
    status = StatusLine(sys.stderr)
    clock = _Clock(status)
    try:
        done = quantize(
            work,
            out,
            backend("cpu").bind,
            threads,
            settings=_settings(args, method),
            restart=args.restart,
            tell=clock.tell,
        )
    finally:
        status.close()
    _report(done, time.perf_counter() - started)
    return 0


def _method(args: argparse.Namespace, weights: DType) -> Method:
    """The method, for a checkpoint of these ``weights``. Raises UsageError for options that belong
    to another."""
    from penstock.quantize.forms.integers import STORAGES, Integers
    from penstock.quantize.grid import IntegerGrid
    from penstock.quantize.methods import Awq, Gptq, RoundToNearest

    storage = STORAGES[args.format]
    scales = storage.scale_dtype(weights)
    grid = IntegerGrid(args.bits, args.group_size, not args.asymmetric, scales)
    form = Integers(grid, storage)
    given = {name: getattr(args, name) for name in _OF_GPTQ if getattr(args, name) is not None}
    if args.method == "gptq":
        method = Gptq(form, **given)
        if not 0 < method.damping <= 1:
            raise UsageError(
                f"argument --damping: must be over 0 and at most 1, not {method.damping}"
            )
        return method
    for name in given:
        raise UsageError(f"argument {_OF_GPTQ[name]}: is of --method gptq alone")
    if args.method == "awq":
        return Awq(form)
    if args.calibration is not None:
        raise UsageError("argument --calibration: --method rtn reads no text; leave it out")
    return RoundToNearest(form)


def _samples(args: argparse.Namespace, method: Method, source: SourceModel) -> Samples | None:
    if not method.calibrated or args.calibration is None:
        return None
    from penstock.cli.eval_common import read_text
    from penstock.quantize.samples import draw
    from penstock.tokenizer.load import load_tokenizer

    text = read_text([args.calibration])
    tokenizer = load_tokenizer(source.folder, check_templates=False)
    tokenizer.check_model(source.spec.vocab_size)
    most = source.spec.max_positions
    length = args.sample_length or min(_SAMPLE_LENGTH, most)
    name = str(args.calibration)
    return draw(tokenizer, text, name, args.samples, length, args.seed, most)


def _settings(args: argparse.Namespace, method: Method) -> dict[str, object]:
    """What the result depends on, besides the checkpoint and the text."""
    settings: dict[str, object] = {
        "method": args.method,
        "bits": args.bits,
        "group_size": args.group_size or "row",
        "asymmetric": args.asymmetric,
        "format": args.format,
    }
    if args.method == "gptq":
        settings |= {name: getattr(method, name) for name in _OF_GPTQ}
    return settings


class _Clock:
    """Shows how far a run is, and how long it will take."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status
        self._first: tuple[float, float] | None = None

    def tell(self, progress: Progress) -> None:
        self._status.show(lambda: self._text(progress))

    def _text(self, progress: Progress) -> str:
        at, now = progress.layer + progress.part, time.monotonic()
        if self._first is None:
            self._first = at, now
        then, since = self._first
        left = ""
        if at > then:
            seconds = (now - since) / (at - then) * (progress.layers - at)
            left = f", {_duration(seconds)} left"
        shown = bar(at / progress.layers) if self._status.rewrites else ""
        layer = f"layer {progress.layer + 1} of {progress.layers}"
        return f"quantizing:{shown} {layer}, {progress.doing}{left}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _report(done: Quantized, seconds: float) -> None:
    sizes = f"{done.source_bytes / 1e6:,.1f} -> {done.num_bytes / 1e6:,.1f} MB"
    print(f"{done.folder}: {done.matrices} matrices, {sizes} in {_duration(seconds)}")
    if done.resumed:
        print(f"  {done.resumed} layers were done by the run before")
    errors = [(each.error, each.module) for each in done.rounded if each.error is not None]
    if errors:
        worst, module = max(errors)
        mean = sum(error for error, _ in errors) / len(errors)
        print(f"  squared error of outputs: mean {mean:.2%}, largest {worst:.2%} ({module})")

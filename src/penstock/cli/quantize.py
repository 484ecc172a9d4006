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
_SAMPLES: Final = 128
_SAMPLE_LENGTH: Final = 2048
_DAMPING: Final = 0.01
_INTEGERS: Final = ("rtn", "gptq", "awq")
_CALIBRATED: Final = ("gptq", "awq")
_OF_INTEGERS: Final = ("bits", "group_size", "asymmetric", "format")
_OF_CALIBRATION: Final = ("calibration", "samples", "sample_length", "seed")
_OF_GPTQ: Final = ("act_order", "damping")
_OF_FP8: Final = ("scales",)
_OF_BNB: Final = ("double_quantization",)


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
        choices=(*_INTEGERS, "fp8", "mxfp4", "nvfp4", "nf4", "fp4"),
        default="rtn",
        help="rtn: round to the nearest integers; gptq: later columns make up for the errors of "
        "earlier ones; awq: columns that multiply large inputs are scaled; or round to the nearest "
        "small floats (default: rtn)",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--restart", action="store_true", help="forget what an interrupted run has done"
    )
    parser.add_argument(
        "--threads", type=positive_int, metavar="N", help="threads (default: one per core)"
    )
    group = parser.add_argument_group("rtn, gptq, awq")
    group.add_argument(
        "--bits", type=int, choices=(2, 3, 4, 8), help="bits of a weight (default: 4)"
    )
    group.add_argument(
        "--group-size",
        type=_group_size,
        metavar="N",
        help="columns that share a scale: 32, 64, 128, or row (default: 128)",
    )
    group.add_argument(
        "--asymmetric",
        action="store_true",
        default=None,
        help="give each group the code that stands for 0, so that codes span its values",
    )
    group.add_argument(
        "--format",
        choices=("compressed-tensors", "gptq", "awq"),
        help="how it is stored (default: compressed-tensors, which vLLM and transformers read)",
    )
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--calibration", type=Path, metavar="FILE", help="the text that the model reads, in UTF-8"
    )
    group.add_argument(
        "--samples",
        type=positive_int,
        metavar="N",
        help="windows of the text that are read (default: 128)",
    )
    group.add_argument(
        "--sample-length",
        type=positive_int,
        metavar="N",
        help="tokens of a window (default: 2048, or what the model has positions for)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="of the windows' places (default: 0)")
    group = parser.add_argument_group("gptq")
    group.add_argument(
        "--act-order",
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
    group = parser.add_argument_group("small floats")
    group.add_argument(
        "--scales",
        choices=("tensor", "channel", "block"),
        help="fp8: what shares a scale, a matrix, a row, or 128 x 128 weights (default: channel)",
    )
    group.add_argument(
        "--double-quantization",
        action=argparse.BooleanOptionalAction,
        help="nf4, fp4: round the scales of blocks to 8 bits, too (default: yes)",
    )


def _group_size(text: str) -> int:
    """Columns; 0: a row."""
    if text == "row":
        return 0
    if text not in ("32", "64", "128"):
        raise argparse.ArgumentTypeError(f"must be 32, 64, 128 or row, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from penstock.backends.registry import backend
    from penstock.quantize.quantization import Quantization
    from penstock.quantize.run import quantize
    from penstock.quantize.source import SourceModel
    from penstock.weights.hub import resolve_model_folder

    _check(args)
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
            settings=_settings(args),
            restart=args.restart,
            tell=clock.tell,
        )
    finally:
        status.close()
    _report(done, time.perf_counter() - started)
    return 0


def _method(args: argparse.Namespace, weights: DType) -> Method:
    """The method, for a checkpoint of these ``weights``."""
    from penstock.quantize.forms.bitsandbytes import Bnb4
    from penstock.quantize.forms.integers import STORAGES, Integers
    from penstock.quantize.forms.small_floats import Fp8, Mxfp4, Nvfp4
    from penstock.quantize.grid import IntegerGrid
    from penstock.quantize.methods import Awq, Gptq, RoundToNearest

    match args.method:
        case "fp8":
            return RoundToNearest(Fp8(args.scales or "channel", weights))
        case "mxfp4":
            return RoundToNearest(Mxfp4())
        case "nvfp4":
            return RoundToNearest(Nvfp4())
        case "nf4" | "fp4":
            return RoundToNearest(Bnb4(args.method, args.double_quantization is not False, weights))
    storage = STORAGES[args.format or "compressed-tensors"]
    size = _GROUP if args.group_size is None else args.group_size
    scales = storage.scale_dtype(weights)
    form = Integers(IntegerGrid(args.bits or 4, size or None, not args.asymmetric, scales), storage)
    if args.method == "gptq":
        return Gptq(form, args.act_order or "static", args.damping or _DAMPING)
    return Awq(form) if args.method == "awq" else RoundToNearest(form)


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that belong to another method."""
    for methods, options in (
        (_INTEGERS, _OF_INTEGERS),
        (_CALIBRATED, _OF_CALIBRATION),
        (("gptq",), _OF_GPTQ),
        (("fp8",), _OF_FP8),
        (("nf4", "fp4"), _OF_BNB),
    ):
        for name in options:
            if getattr(args, name) is not None and args.method not in methods:
                raise UsageError(
                    f"argument --{name.replace('_', '-')}: is of --method {' and '.join(methods)} "
                    f"alone, not of {args.method}; leave it out"
                )
    if args.damping is not None and not 0 < args.damping <= 1:
        raise UsageError(f"argument --damping: must be over 0 and at most 1, not {args.damping}")


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
    count, seed = args.samples or _SAMPLES, args.seed or 0
    return draw(tokenizer, text, name, count, length, seed, most)


def _settings(args: argparse.Namespace) -> dict[str, object]:
    """The options that were given of those which the result depends on, besides the text's."""
    names = [*_OF_INTEGERS, *_OF_GPTQ, *_OF_FP8, *_OF_BNB]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {"method": args.method, **given}


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

"""Quantize a checkpoint in floats, and write it as other engines read it, too.

  penstock quantize path/to/checkpoint --bits 4 --out checkpoint-int4
  penstock quantize path/to/checkpoint --method gptq --bits 4 --calibration text.txt --out DIR

MODEL is the folder of a Hugging Face checkpoint, or a hub id. With a method that is calibrated the
model reads windows of a text, layer by layer, so that memory holds one layer. A run that was
interrupted goes on where the same command is given again. docs/quantize.md has the methods,
the formats, and what they cost.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.options import positive_int, whole_number
from penstock.cli.parser import UsageError
from penstock.cli.quantize_options import METHODS, settings_of
from penstock.cli.quantize_reading import request_of
from penstock.cli.quantize_report import Clock, report
from penstock.cli.quantize_request import ComparisonRequest, MethodRequest, Request
from penstock.cli.quantize_tuning import tuning_of
from penstock.cli.quantize_work import work_of
from penstock.cli.status_line import StatusLine

if TYPE_CHECKING:
    from penstock.quantize.budget import Budget
    from penstock.quantize.fine_tuning import FineTuning
    from penstock.quantize.run import Quantized, Work

RARE = frozenset({"--damping", "--seed"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the checkpoint to quantize")
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="DIR",
        help="the folder to write, which must not be there yet; with --compare, a folder for all "
        "variants",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="rtn: round to the nearest integers; gptq: later columns compensate for the errors of "
        "earlier ones; awq: columns that multiply large inputs are scaled; quip: matrices are "
        "rotated, and 8 weights at a time become a point of a lattice (QuIP#); magnitude, "
        "sparsegpt: 2:4 sparsity, which prunes the smallest weights, or those whose loss others "
        "compensate for best; squeezellm: a codebook of 8 or 16 values for each row, and a few "
        "weights in floats; smoothquant: 8 bits, for activations of 8 bits, too; the others: round "
        "to the nearest small floats (default: rtn)",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--restart", action="store_true", help="forget what an interrupted run has done"
    )
    parser.add_argument(
        "--threads",
        type=positive_int,
        metavar="N",
        help="threads that quantize (default: one per core)",
    )
    parser.add_argument(
        "--embedding-bits",
        type=int,
        choices=(8,),
        metavar="N",
        help="8: round the embedding and the output matrix to 8 bits, with a scale for each row, "
        "in compressed-tensors' formats and quip (default: they stay as they are)",
    )
    group = parser.add_argument_group("rtn, gptq, awq, magnitude, sparsegpt")
    group.add_argument(
        "--bits",
        type=_bits,
        metavar="N",
        help="bits of a weight: 2, 3, 4, 8, or auto, which gives each matrix as many as --budget "
        "allows and the model needs (rtn, gptq, awq); also of quip, which has 2, 3 and 4, and of "
        "squeezellm, which has 3 and 4 (default: 4; of quip: 2)",
    )
    group.add_argument(
        "--budget",
        type=_budget,
        metavar="SIZE",
        help="with --bits auto: bits of a weight, scales included, such as 3.5; or of the whole "
        "checkpoint, such as 380MB",
    )
    group.add_argument(
        "--allowed-bits",
        type=int,
        nargs="+",
        choices=(2, 3, 4, 8, 16),
        metavar="N",
        help="with --bits auto: those that matrices may have; 16: they stay as they are (default: "
        "2 3 4 8 16)",
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
        help="store a zero point for each group, so that its codes span the range of its weights",
    )
    group.add_argument(
        "--format",
        choices=("compressed-tensors", "gptq", "awq", "sparse-24-bitmask"),
        help="the format of the checkpoint (default: compressed-tensors, which vLLM and "
        "transformers read, or plain floats, where a sparse matrix is not rounded; "
        "sparse-24-bitmask leaves zeros out)",
    )
    group.add_argument(
        "--sparsity",
        choices=("2:4",),
        help="set two of each four weights to 0, as magnitude, the default then, and sparsegpt do; "
        "the others stay floats, or are rounded where --bits is given",
    )
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--compare",
        nargs="+",
        metavar="METHOD[:BITS[:GROUP]]",
        help="make all of these variants, such as rtn:4:64 gptq:4:64 nf4, in folders of --out, and "
        "write a table of what each loses, its size and its speed; :tuned behind one applies "
        "--fine-tune to it",
    )
    group.add_argument(
        "--text",
        type=Path,
        action="append",
        metavar="FILE",
        help="the text on which they are evaluated, in UTF-8; another than --calibration",
    )
    group.add_argument(
        "--max-windows",
        type=positive_int,
        metavar="N",
        help="windows of 512 tokens of it that are read (default: 20)",
    )
    group.add_argument(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help="evaluate variants on these, too: files of questions, each a line of JSON, such as "
        '{"question": "2 + 2 =", "answers": [" 3", " 4"], "right": 1}, or names of '
        "lm-evaluation-harness's tasks, such as arc_easy (which penstock[lm-eval] installs)",
    )
    group.add_argument(
        "--task-folder",
        type=Path,
        action="append",
        metavar="DIR",
        help="a folder of YAML files that describe more of lm-evaluation-harness's tasks",
    )
    group.add_argument(
        "--max-questions",
        type=positive_int,
        metavar="N",
        help="questions of each task that are asked (default: all)",
    )
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--calibration", type=Path, metavar="FILE", help="the text that the model reads, in UTF-8"
    )
    group.add_argument(
        "--samples",
        type=positive_int,
        metavar="N",
        help="windows of the text that the model reads (default: 128)",
    )
    group.add_argument(
        "--sample-length",
        type=positive_int,
        metavar="N",
        help="tokens of a window (default: 2048, or what the model has positions for)",
    )
    group.add_argument(
        "--seed",
        type=whole_number,
        metavar="N",
        help="seed of the windows' places, and of the signs with which quip rotates (default: 0)",
    )
    group = parser.add_argument_group("fine-tuning")
    group.add_argument(
        "--fine-tune",
        type=positive_int,
        metavar="STEPS",
        help="after rounding, train what stays continuous (scales, zero points, codebooks, norms), "
        "so that the model predicts on --calibration what it does in floats; needs torch, and is "
        "kept if it gains on the last tenth of the text, which is held out",
    )
    group.add_argument(
        "--fine-tune-codes",
        action="store_true",
        default=None,
        help="let the codes of integers change, too",
    )
    group = parser.add_argument_group("gptq, sparsegpt, quip")
    group.add_argument(
        "--act-order",
        choices=("static", "group", "none"),
        help="gptq: static and group round columns that multiply large inputs first; with static "
        "groups are of adjacent columns, with group of columns in that order, which engines "
        "multiply slower; none rounds from the first column to the last (default: static)",
    )
    group.add_argument(
        "--damping",
        type=float,
        metavar="PART",
        help="part of the mean of the Hessian's diagonal that is added to it (default: 0.01)",
    )
    group = parser.add_argument_group("squeezellm")
    group.add_argument(
        "--outliers",
        type=float,
        metavar="PART",
        help="part of a matrix's weights that stays in floats (default: 0.0045)",
    )
    group.add_argument(
        "--sensitivity",
        choices=("inputs", "gradients"),
        help="weights of k-means: the squares of the inputs, or of the gradients of the model's "
        "loss, for which torch and transformers run it in float32 (default: inputs)",
    )
    group = parser.add_argument_group("small floats")
    group.add_argument(
        "--scales",
        choices=("tensor", "channel", "block"),
        help="fp8: what shares a scale: a matrix, a row, or 128 x 128 weights (default: channel)",
    )
    group.add_argument(
        "--double-quantization",
        action=argparse.BooleanOptionalAction,
        help="nf4, fp4: round the scales of blocks to 8 bits, too (default: yes)",
    )


def _bits(text: str) -> int | str:
    if text != "auto" and text not in ("2", "3", "4", "8"):
        raise argparse.ArgumentTypeError(f"must be 2, 3, 4, 8 or auto, not {text!r}")
    return text if text == "auto" else int(text)


def _budget(text: str) -> Budget:
    from penstock.quantize.budget import Budget

    try:
        return Budget.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _group_size(text: str) -> int:
    """Columns; 0: a row."""
    if text == "row":
        return 0
    if text not in ("32", "64", "128"):
        raise argparse.ArgumentTypeError(f"must be 32, 64, 128 or row, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from penstock.quantize.source import SourceModel
    from penstock.weights.hub import resolve_model_folder

    request = request_of(args)
    asked, out = request.asked, request.out
    source = SourceModel(resolve_model_folder(request.model, request.revision))

    def make(
        options: MethodRequest, work: Work, tuning: FineTuning | None, folder: Path
    ) -> Quantized:
        return _quantize(request, options, work, tuning, folder)

    if isinstance(asked, ComparisonRequest):
        from penstock.cli.quantize_compare import compare

        return compare(asked, out, source, request.restart, make)
    if os.path.lexists(out):
        raise UsageError(f"argument --out: {out} is there already; remove it, or name another")
    if not out.parent.is_dir():
        raise UsageError(f"argument --out: there is no folder {out.parent}; make it first")
    tuning = tuning_of(asked, source)
    started = time.perf_counter()
    work = work_of(asked, source)
    for note in work.notes:
        print(f"note: {note}", file=sys.stderr)
    report(make(asked, work, tuning, out), time.perf_counter() - started)
    return 0


def _quantize(
    request: Request,
    options: MethodRequest,
    work: Work,
    tuning: FineTuning | None,
    out: Path,
) -> Quantized:
    """Write what ``options`` ask for to the folder ``out``."""
    from penstock.backends.registry import backend
    from penstock.quantize.run import quantize

    status = StatusLine(sys.stderr)
    try:
        return quantize(
            work,
            out,
            backend("cpu").bind,
            request.threads,
            settings=settings_of(options),
            restart=request.restart,
            tuning=tuning,
            tell=Clock(status).tell,
        )
    finally:
        status.close()

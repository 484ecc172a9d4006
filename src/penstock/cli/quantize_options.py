"""The options of ``penstock quantize``: which method takes which, and what goes together."""

from __future__ import annotations

from typing import Final

from penstock.cli.parser import UsageError
from penstock.cli.quantize_request import MethodRequest

_MOST_SEED: Final = 2**31 - 1
INTEGERS: Final = ("rtn", "gptq", "awq")
SPARSE: Final = ("magnitude", "sparsegpt")
METHODS: Final = (
    *INTEGERS,
    *SPARSE,
    "squeezellm",
    "quip",
    "smoothquant",
    "fp8",
    "mxfp4",
    "nvfp4",
    "nf4",
    "fp4",
)
CALIBRATED: Final = ("gptq", "awq", "quip", "sparsegpt", "squeezellm", "smoothquant")
QUIP_BITS: Final = (2, 3, 4)
AUTO: Final = "auto"
COMPRESSED: Final = "sparse-24-bitmask"
IN_FLOATS: Final = 16
_OF_CODES: Final = ("bits",)
_OF_INTEGERS: Final = ("group_size", "asymmetric", "format", "budget", "allowed_bits")
_OF_SQUEEZING: Final = ("outliers", "sensitivity")
_OF_CALIBRATION: Final = ("calibration", "samples", "sample_length", "seed")
_OF_TUNING: Final = ("fine_tune", "fine_tune_codes")
_OF_GPTQ: Final = ("act_order",)
_OF_SOLVING: Final = ("damping",)
_OF_SPARSITY: Final = ("sparsity",)
_OF_FP8: Final = ("scales",)
_OF_BNB: Final = ("double_quantization",)
_OF_EMBEDDINGS: Final = ("embedding_bits",)
_WITH_EMBEDDINGS: Final = (*INTEGERS, *SPARSE, "quip", "smoothquant", "fp8", "mxfp4", "nvfp4")


_OPTIONS: Final = (
    ((*INTEGERS, *SPARSE, "squeezellm", "quip"), _OF_CODES),
    ((*INTEGERS, *SPARSE), _OF_INTEGERS),
    (("squeezellm",), _OF_SQUEEZING),
    (CALIBRATED, _OF_CALIBRATION),
    (("gptq",), _OF_GPTQ),
    (("gptq", "sparsegpt", "quip"), _OF_SOLVING),
    (SPARSE, _OF_SPARSITY),
    (("fp8",), _OF_FP8),
    (("nf4", "fp4"), _OF_BNB),
    (_WITH_EMBEDDINGS, _OF_EMBEDDINGS),
)
"""The methods that take some options, and these."""


def check(args: MethodRequest) -> None:
    """Raise UsageError for options that belong to another method."""
    if args.bits == AUTO and args.method not in INTEGERS:
        raise UsageError(
            f"argument --bits: auto is of --method {', '.join(INTEGERS)} alone, not of "
            f"{args.method}; give a number, or leave it out"
        )
    reads = args.bits == AUTO or args.fine_tune is not None
    calibrated = (*CALIBRATED, args.method) if reads else CALIBRATED
    for methods, options in _OPTIONS:
        for name in options:
            if options is _OF_CALIBRATION and args.method in calibrated:
                continue
            if getattr(args, name) is not None and args.method not in methods:
                raise UsageError(
                    f"argument --{name.replace('_', '-')}: is of --method {', '.join(methods)} "
                    f"alone, not of {args.method}; leave it out"
                )
    _check_tuning(args)
    _check_budget(args)
    _check_sparsity(args)
    _check_squeezing(args)
    if args.method == "quip":
        _check_quip(args)
    if args.damping is not None and not 0 < args.damping <= 1:
        raise UsageError(f"argument --damping: must be over 0 and at most 1, not {args.damping}")


def _check_tuning(args: MethodRequest) -> None:
    if args.fine_tune is None:
        if args.fine_tune_codes is not None:
            raise UsageError("argument --fine-tune-codes: needs --fine-tune STEPS")
        return
    if args.calibration is None:
        raise UsageError("argument --fine-tune: needs a text to train on: --calibration FILE")


def _check_quip(args: MethodRequest) -> None:
    if args.bits not in (None, *QUIP_BITS):
        raise UsageError(f"argument --bits: must be 2, 3 or 4 for quip, not {args.bits}")
    if args.seed is not None and args.seed > _MOST_SEED:
        raise UsageError(f"argument --seed: must be at most {_MOST_SEED} for quip")


def _check_budget(args: MethodRequest) -> None:
    if args.bits == AUTO:
        if args.budget is None:
            raise UsageError(
                "argument --bits: auto needs a --budget, such as 3.5 (bits of a weight) or 380MB"
            )
        if args.format not in (None, "compressed-tensors"):
            raise UsageError(
                f"argument --bits: auto has --format compressed-tensors alone, not {args.format}"
            )
        if args.allowed_bits is not None and set(args.allowed_bits) <= {IN_FLOATS}:
            raise UsageError("argument --allowed-bits: must have 2, 3, 4 or 8, too")
        return
    for name in ("budget", "allowed_bits"):
        if getattr(args, name) is not None:
            raise UsageError(
                f"argument --{name.replace('_', '-')}: is of --bits auto alone; leave it out"
            )


def _check_sparsity(args: MethodRequest) -> None:
    if args.method not in SPARSE:
        if args.format == COMPRESSED:
            raise UsageError(
                f"argument --format: {COMPRESSED} is of --method {' and '.join(SPARSE)} alone"
            )
        return
    if args.bits is not None:
        return
    for name in ("group_size", "asymmetric"):
        if getattr(args, name) is not None:
            raise UsageError(
                f"argument --{name.replace('_', '-')}: is of integers; give --bits, too"
            )
    if args.format not in (None, "compressed-tensors", COMPRESSED):
        raise UsageError(f"argument --format: {args.format} has no floats; give --bits, too")


def _check_squeezing(args: MethodRequest) -> None:
    from penstock.models.squeezellm import MOST_OUTLIERS

    if args.method != "squeezellm":
        return
    if args.bits not in (None, 3, 4):
        raise UsageError(f"argument --bits: squeezellm has 3 or 4, not {args.bits}")
    if args.outliers is not None and not 0 <= args.outliers <= MOST_OUTLIERS:
        raise UsageError(
            f"argument --outliers: must be from 0 to {MOST_OUTLIERS}, not {args.outliers}"
        )


def of_method(
    args: MethodRequest,
    method: str,
    bits: int | str | None,
    group_size: int | None,
    asymmetric: bool | None,
) -> MethodRequest:
    """The options of one method of several, for which ``args`` has those of all."""
    others = ["budget", *([] if bits == AUTO else ["allowed_bits"])]
    for methods, options in _OPTIONS:
        reads = bits == AUTO or args.fine_tune is not None
        measured = reads and options is _OF_CALIBRATION
        if method not in methods and not measured:
            others += options
    own = dict(vars(args), method=method, bits=bits, group_size=group_size, asymmetric=asymmetric)
    return MethodRequest(**{**own, **dict.fromkeys(others)})


def settings_of(args: MethodRequest) -> dict[str, object]:
    """The options that were given of those which the result depends on, besides the text's."""
    names = [*_OF_CODES, *_OF_INTEGERS, *_OF_SQUEEZING, *_OF_GPTQ, *_OF_SOLVING, *_OF_FP8, *_OF_BNB]
    names += [*_OF_TUNING, *_OF_EMBEDDINGS]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if "budget" in given:
        given["budget"] = str(given["budget"])
    return {"method": args.method, **given}

"""The options of ``penstock quantize``: whose they are, and what they make."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from penstock.cli.parser import UsageError

if TYPE_CHECKING:
    from penstock.models.spec import DType
    from penstock.quantize.methods import Method
    from penstock.quantize.quantization import Quantization
    from penstock.quantize.samples import Samples
    from penstock.quantize.source import SourceModel

_GROUP: Final = 128
_SAMPLES: Final = 128
_SAMPLE_LENGTH: Final = 2048
_DAMPING: Final = 0.01
_MOST_SEED: Final = 2**31 - 1
INTEGERS: Final = ("rtn", "gptq", "awq")
METHODS: Final = (*INTEGERS, "quip", "smoothquant", "fp8", "mxfp4", "nvfp4", "nf4", "fp4")
CALIBRATED: Final = ("gptq", "awq", "quip", "smoothquant")
QUIP_BITS: Final = (2, 3, 4)
_OF_BITS: Final = ("bits",)
_OF_INTEGERS: Final = ("group_size", "asymmetric", "format")
_OF_CALIBRATION: Final = ("calibration", "samples", "sample_length", "seed")
_OF_GPTQ: Final = ("act_order",)
_OF_HESSIANS: Final = ("damping",)
_OF_FP8: Final = ("scales",)
_OF_BNB: Final = ("double_quantization",)


def method_of(args: argparse.Namespace, weights: DType) -> Method:
    """The method, for a checkpoint of these ``weights``."""
    from penstock.quantize.forms import w8a8
    from penstock.quantize.forms.bitsandbytes import Bnb4
    from penstock.quantize.forms.integers import STORAGES, Integers
    from penstock.quantize.forms.lattice import Lattice
    from penstock.quantize.forms.small_floats import Fp8, Mxfp4, Nvfp4
    from penstock.quantize.grid import IntegerGrid
    from penstock.quantize.methods import Awq, Gptq, Quip, RoundToNearest, SmoothQuant

    match args.method:
        case "quip":
            return Quip(Lattice(args.bits or 2, args.seed or 0), args.damping or _DAMPING)
        case "smoothquant":
            return SmoothQuant(Integers(IntegerGrid(8, None, True, weights), w8a8))
        case "fp8":
            # float16 has too little range for scales of small rows.
            scales: DType = "float32" if weights == "float16" else weights
            return RoundToNearest(Fp8(args.scales or "channel", scales))
        case "mxfp4":
            return RoundToNearest(Mxfp4())
        case "nvfp4":
            return RoundToNearest(Nvfp4())
        case "nf4" | "fp4":
            return RoundToNearest(Bnb4(args.method, args.double_quantization is not False, weights))
    storage = STORAGES[args.format or "compressed-tensors"]
    size = _GROUP if args.group_size is None else args.group_size
    own = storage.scale_dtype(weights)
    form = Integers(IntegerGrid(args.bits or 4, size or None, not args.asymmetric, own), storage)
    if args.method == "gptq":
        return Gptq(form, args.act_order or "static", args.damping or _DAMPING)
    return Awq(form) if args.method == "awq" else RoundToNearest(form)


_OPTIONS: Final = (
    ((*INTEGERS, "quip"), _OF_BITS),
    (INTEGERS, _OF_INTEGERS),
    (CALIBRATED, _OF_CALIBRATION),
    (("gptq", "quip"), _OF_HESSIANS),
    (("gptq",), _OF_GPTQ),
    (("fp8",), _OF_FP8),
    (("nf4", "fp4"), _OF_BNB),
)
"""The methods that take some options, and these."""


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that belong to another method."""
    for methods, options in _OPTIONS:
        for name in options:
            if getattr(args, name) is not None and args.method not in methods:
                raise UsageError(
                    f"argument --{name.replace('_', '-')}: is of --method {' and '.join(methods)} "
                    f"alone, not of {args.method}; leave it out"
                )
    if args.method == "quip":
        if args.bits not in (None, *QUIP_BITS):
            raise UsageError(f"argument --bits: must be 2, 3 or 4 for quip, not {args.bits}")
        if args.seed is not None and args.seed > _MOST_SEED:
            raise UsageError(f"argument --seed: must be at most {_MOST_SEED} for quip")
    if args.damping is not None and not 0 < args.damping <= 1:
        raise UsageError(f"argument --damping: must be over 0 and at most 1, not {args.damping}")


def of_method(
    args: argparse.Namespace,
    method: str,
    bits: int | None,
    group_size: int | None,
    asymmetric: bool | None,
) -> argparse.Namespace:
    """The options of one method of several, for which ``args`` has those of all."""
    own = argparse.Namespace(**vars(args))
    own.method, own.bits, own.group_size, own.asymmetric = method, bits, group_size, asymmetric
    for methods, options in _OPTIONS:
        if method not in methods:
            for name in options:
                setattr(own, name, None)
    return own


def work_of(args: argparse.Namespace, source: SourceModel) -> Quantization:
    """What is to be done. Raises what making a Quantization does, and ConfigError for a text that
    is too short."""
    from penstock.quantize.quantization import Quantization

    method = method_of(args, source.spec.dtype)
    return Quantization(source, method, _samples(args, method, source))


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


def settings_of(args: argparse.Namespace) -> dict[str, object]:
    """The options that were given of those which the result depends on, besides the text's."""
    names = [*_OF_BITS, *_OF_INTEGERS, *_OF_HESSIANS, *_OF_GPTQ, *_OF_FP8, *_OF_BNB]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {"method": args.method, **given}

"""The options of ``penstock quantize``: whose they are, and what they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from penstock.cli.parser import UsageError
from penstock.cli.quantize_request import MethodRequest
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.models.spec import DType
    from penstock.quant.scheme import LatticeBits
    from penstock.quantize.fisher import SquaredGradients
    from penstock.quantize.forms.integers import Integers
    from penstock.quantize.methods import Method
    from penstock.quantize.run import Work
    from penstock.quantize.samples import Samples
    from penstock.quantize.source import SourceModel

_GROUP: Final = 128
_SAMPLES: Final = 128
_SAMPLE_LENGTH: Final = 2048
_DAMPING: Final = 0.01
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
_ALLOWED: Final = (2, 3, 4, 8, 16)
_IN_FLOATS: Final = 16
_KINDS: Final[Mapping[str, Literal["nf4", "fp4"]]] = {"nf4": "nf4", "fp4": "fp4"}
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


def method_of(args: MethodRequest, weights: DType) -> Method:
    """The method, for a checkpoint of these ``weights``."""
    from penstock.models.row_codebooks import RowCodebooks
    from penstock.quantize.forms import w8a8
    from penstock.quantize.forms.bitsandbytes import Bnb4
    from penstock.quantize.forms.codebooks import Codebooks
    from penstock.quantize.forms.integers import Integers
    from penstock.quantize.forms.lattice import Lattice
    from penstock.quantize.forms.small_floats import Fp8, Mxfp4, Nvfp4
    from penstock.quantize.grid import IntegerGrid
    from penstock.quantize.methods import Awq, Gptq, Quip, RoundToNearest, SmoothQuant
    from penstock.quantize.squeezellm import OUTLIERS
    from penstock.quantize.squeezing import SqueezeLlm

    match args.method:
        case "quip":
            return Quip(Lattice(_lattice_bits(args), args.seed or 0), args.damping or _DAMPING)
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
            return RoundToNearest(
                Bnb4(_KINDS[args.method], args.double_quantization is not False, weights)
            )
        case "squeezellm":
            outliers = OUTLIERS if args.outliers is None else args.outliers
            return SqueezeLlm(
                Codebooks(RowCodebooks(3 if args.bits == 3 else 4, outliers), weights)
            )
        case "magnitude" | "sparsegpt":
            return _sparse_method(args, weights)
    form = _integers(args, weights)
    if args.method == "gptq":
        return Gptq(form, args.act_order or "static", args.damping or _DAMPING)
    return Awq(form) if args.method == "awq" else RoundToNearest(form)


def _bits(args: MethodRequest) -> int | None:
    """The number of bits; None where none was given, or a budget chooses it."""
    return args.bits if isinstance(args.bits, int) else None


def _lattice_bits(args: MethodRequest) -> LatticeBits:
    """Those of quip, which :func:`check` has seen."""
    given = _bits(args)
    return 3 if given == 3 else 4 if given == 4 else 2


def _integers(args: MethodRequest, weights: DType) -> Integers:
    from penstock.quantize.forms.integers import STORAGES, Integers
    from penstock.quantize.grid import IntegerGrid

    storage = STORAGES[args.format or "compressed-tensors"]
    size = _GROUP if args.group_size is None else args.group_size
    own = storage.scale_dtype(weights)
    return Integers(IntegerGrid(_bits(args) or 4, size or None, not args.asymmetric, own), storage)


def _sparse_method(args: MethodRequest, weights: DType) -> Method:
    from penstock.quantize.forms.integers import Integers
    from penstock.quantize.forms.sparse import PrunedStorage, Sparse24Storage, SparseFloats
    from penstock.quantize.grid import IntegerGrid
    from penstock.quantize.pruning import Magnitude, SparseGpt

    form: SparseFloats | Integers
    compressed = args.format == COMPRESSED
    if args.bits is None:
        form = SparseFloats(weights, compressed)
    elif compressed:
        size = _GROUP if args.group_size is None else args.group_size
        grid = IntegerGrid(_bits(args) or 8, size or None, not args.asymmetric, weights)
        form = Integers(grid, Sparse24Storage())
    else:
        form = _integers(args, weights)
        if args.format in (None, "compressed-tensors"):
            form = replace(form, storage=PrunedStorage())
    if args.method == "sparsegpt":
        return SparseGpt(form, args.damping or _DAMPING)
    return Magnitude(form)


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
        if args.allowed_bits is not None and set(args.allowed_bits) <= {_IN_FLOATS}:
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


def work_of(args: MethodRequest, source: SourceModel) -> Work:
    """What is to be done. Raises what making a Quantization does, and ConfigError for a text that
    is too short."""
    from penstock.quantize.embeddings import Embeddings
    from penstock.quantize.mixed import BudgetedQuantization
    from penstock.quantize.quantization import Quantization
    from penstock.quantize.squeezing import SqueezeLlm

    embeddings = None if args.embedding_bits is None else Embeddings(source)
    if args.budget is not None:  # which goes with --bits auto
        allowed = args.allowed_bits or _ALLOWED
        numbers = sorted({*allowed} - {_IN_FLOATS})
        own = {bits: replace(args, bits=bits) for bits in numbers}
        methods = {bits: method_of(each, source.spec.dtype) for bits, each in own.items()}
        samples = _samples(args, source)
        floats = _IN_FLOATS in allowed
        return BudgetedQuantization(source, methods, args.budget, samples, floats, embeddings)
    method = method_of(args, source.spec.dtype)
    samples = _samples(args, source) if method.calibrated else None
    if isinstance(method, SqueezeLlm) and args.sensitivity == "gradients" and samples is not None:
        method = SqueezeLlm(method.form, _gradients(source, samples))
    return Quantization(source, method, samples, embeddings=embeddings)


def _gradients(source: SourceModel, samples: Samples) -> SquaredGradients:
    from penstock.quantize.fisher import SquaredGradients

    try:
        from penstock.train.squared_gradients import squared_gradients
    except ImportError as error:
        raise ConfigError(
            "--sensitivity gradients needs torch and transformers: pip install "
            "'penstock[train]', or take --sensitivity inputs"
        ) from error
    return SquaredGradients(source, samples, squared_gradients)


def _samples(args: MethodRequest, source: SourceModel) -> Samples | None:
    if args.calibration is None:
        return None
    from penstock.cli.eval_common import read_text
    from penstock.quantize.samples import HELD_OUT, draw
    from penstock.tokenizer.load import load_tokenizer

    text = read_text([args.calibration])
    tokenizer = load_tokenizer(source.folder, check_templates=False)
    tokenizer.check_model(source.spec.vocab_size)
    most = source.spec.max_positions
    length = sample_length(args, most)
    name = str(args.calibration)
    count, seed = args.samples or _SAMPLES, args.seed or 0
    held_out = 0.0 if args.fine_tune is None else HELD_OUT
    return draw(tokenizer, text, name, count, length, seed, most, held_out)


def sample_length(args: MethodRequest, most: int) -> int:
    """Tokens of a sample, of a model with ``most`` positions."""
    return args.sample_length or min(_SAMPLE_LENGTH, most)


def settings_of(args: MethodRequest) -> dict[str, object]:
    """The options that were given of those which the result depends on, besides the text's."""
    names = [*_OF_CODES, *_OF_INTEGERS, *_OF_SQUEEZING, *_OF_GPTQ, *_OF_SOLVING, *_OF_FP8, *_OF_BNB]
    names += [*_OF_TUNING, *_OF_EMBEDDINGS]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if "budget" in given:
        given["budget"] = str(given["budget"])
    return {"method": args.method, **given}

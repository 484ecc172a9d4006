"""What the options of ``penstock quantize`` make: a method, and all that is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from penstock.cli.quantize_options import COMPRESSED, IN_FLOATS
from penstock.cli.quantize_request import MethodRequest
from penstock.errors import ConfigError, TokenizerError

if TYPE_CHECKING:
    from penstock.models.spec import DType
    from penstock.quant.scheme import LatticeBits
    from penstock.quantize.fisher import SquaredGradients
    from penstock.quantize.forms.integers import Integers
    from penstock.quantize.methods import Method
    from penstock.quantize.run import Work
    from penstock.quantize.samples import Samples
    from penstock.quantize.source import SourceModel
    from penstock.tokenizer import Tokenizer

_GROUP: Final = 128
_SAMPLES: Final = 128
_SAMPLE_LENGTH: Final = 2048
_DAMPING: Final = 0.01
_ALLOWED: Final = (2, 3, 4, 8, 16)
_KINDS: Final[Mapping[str, Literal["nf4", "fp4"]]] = {"nf4": "nf4", "fp4": "fp4"}


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
        numbers = sorted({*allowed} - {IN_FLOATS})
        own = {bits: replace(args, bits=bits) for bits in numbers}
        methods = {bits: method_of(each, source.spec.dtype) for bits, each in own.items()}
        samples = _samples(args, source)
        floats = IN_FLOATS in allowed
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

    text = read_text([args.calibration])
    tokenizer = tokenizer_of(source)
    most = source.spec.max_positions
    length = sample_length(args, most)
    name = str(args.calibration)
    count, seed = args.samples or _SAMPLES, args.seed or 0
    held_out = 0.0 if args.fine_tune is None else HELD_OUT
    return draw(tokenizer, text, name, count, length, seed, most, held_out)


def tokenizer_of(source: SourceModel) -> Tokenizer:
    """The tokenizer of the model that is quantized. Raises TokenizerError where it has none."""
    from penstock.tokenizer.load import has_tokenizer, load_tokenizer

    if not has_tokenizer(source.folder):
        raise TokenizerError(
            f"{source.folder} has no tokenizer, so no text can be read; download the checkpoint "
            "again with it, or take a --method without --calibration"
        )
    tokenizer = load_tokenizer(source.folder, check_templates=False)
    tokenizer.check_model(source.spec.vocab_size)
    return tokenizer


def sample_length(args: MethodRequest, most: int) -> int:
    """Tokens of a sample, of a model with ``most`` positions."""
    return args.sample_length or min(_SAMPLE_LENGTH, most)

"""The training after rounding that options of ``penstock quantize`` ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cli.quantize_options import AUTO
from penstock.cli.quantize_request import MethodRequest
from penstock.cli.quantize_work import method_of, sample_length, tokenizer_of
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.quantize.fine_tuning import FineTuning
    from penstock.quantize.source import SourceModel


def tuning_of(args: MethodRequest, source: SourceModel) -> FineTuning | None:
    """The training that is asked for; None where there is none. Raises ConfigError for a text that
    is too short, for a method of which nothing can be trained, and without what trains."""
    if args.fine_tune is None or args.calibration is None:
        return None
    from penstock.cli.eval_common import read_text
    from penstock.quantize.fine_tuning import FineTuning
    from penstock.quantize.samples import training_text

    try:
        from penstock.train.fine_tuning import fine_tune
    except ImportError as error:
        raise ConfigError(
            "--fine-tune needs torch and transformers: pip install 'penstock[train]', or leave it "
            "out"
        ) from error
    text = read_text([args.calibration])
    tokenizer = tokenizer_of(source)
    most = source.spec.max_positions
    length = sample_length(args, most)
    own = training_text(tokenizer, text, str(args.calibration), length, args.seed or 0, most)
    tuning = FineTuning(args.fine_tune, bool(args.fine_tune_codes), own, fine_tune)
    bits = min(args.allowed_bits or (4,)) if args.bits == AUTO else args.bits
    tuning.require(method_of(replace(args, bits=bits), source.spec.dtype))
    return tuning

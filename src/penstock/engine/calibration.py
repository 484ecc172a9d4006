"""Calibration: a short text, run once through the model before its weights are rounded, says how
large the columns are of what matrices multiply, and how those of keys and queries lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.engine.piece_run import Bind, PieceRun
from penstock.errors import TokenizerError
from penstock.interface.weights import WeightSource
from penstock.models.spec import ModelSpec
from penstock.plan.observation import Observation, ObservedKeys
from penstock.plan.plan import Plan
from penstock.quant import BlockTensor, GroupTensor
from penstock.resolved_config import ResolvedConfig
from penstock.tokenizer import has_tokenizer, load_tokenizer
from penstock.weights.calibration_text import calibration_tokens, spread_tokens
from penstock.weights.checkpoint import open_weights
from penstock.weights.key_scaling import Moments, scale_keys
from penstock.weights.model_files import ModelFiles
from penstock.weights.smoothing import column_squares

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """What a text says of a model."""

    inputs: Mapping[str, F64]
    """The squared norms ``[k]`` of the columns of each ``Balance.input`` ``[tokens, k]``, of rows
    of length 1."""
    keys: Mapping[str, F32]
    """What keys are centered and scaled by: arrays by ``KeyColumns.name``."""


def calibrate(
    config: ResolvedConfig,
    plan: Plan,
    bind: Bind,
    files: ModelFiles | None = None,
    tell: Callable[[float], None] = lambda part: None,
) -> Measured:
    """Measure the inputs of ``plan`` that its balances name, and the keys that it scales, by the
    text that ships with Penstock, or by tokens from all over the vocabulary where there is no
    tokenizer.

    The result depends on the weights, the tokenizer and the plan's rotations, and on no other
    option (``ArtifactKey``). Raises TokenizerError, which names the way out, ConfigError and
    WeightError.
    """
    tokens = _tokens(Path(config.tokenizer_path), plan.spec)
    observation = Observation.of(plan, tokens)
    model = files or Path(config.model_path)
    weights = open_weights(model, plan.spec, observation.weights, "float32")
    return measure_inputs(bind, observation, weights, tokens, config.threads, config.cpus, tell)


def _tokens(path: Path, spec: ModelSpec) -> list[int]:
    if not has_tokenizer(path):
        return spread_tokens(spec.vocab_size, spec.max_positions)
    try:
        tokenizer = load_tokenizer(path, check_templates=False)
        tokenizer.check_model(spec.vocab_size)
    except TokenizerError as error:
        raise TokenizerError(
            f"{error}; --no-quantization-calibration starts without a text to calibrate by"
        ) from error
    return calibration_tokens(tokenizer, spec.max_positions)


def measure_inputs(
    bind: Bind,
    observation: Observation,
    weights: WeightSource,
    tokens: Sequence[int],
    threads: int,
    cpus: tuple[int, ...] = (),
    tell: Callable[[float], None] = lambda part: None,
) -> Measured:
    """Run ``tokens`` through the model; return what is measured of what is observed.

    ``bind`` is a backend's, in whose executors no bit depends on the number of threads, and
    ``weights`` are those of the observation, in float32. ``tell`` is given the part that is done.
    Raises what binding does, and WeightError.
    """
    values: dict[str, F32] = {}
    for buffer, rows in observation.lookups.items():
        value = weights.get(rows)
        if isinstance(value, BlockTensor | GroupTensor):
            values[buffer] = value.dequantize()
        else:
            values[buffer] = np.asarray(value)
    heads = {name for each in observation.keys for name in (each.keys, *each.queries)}
    squares: dict[str, F64] = {}
    moments: dict[str, Moments] = {}
    for i, piece in enumerate(observation.pieces):
        with PieceRun(bind, piece, weights, len(tokens), threads, cpus) as run:
            returned = run(tokens, values)
            for observed in piece.observed:
                columns = returned[observed.name]
                if observed.name in heads:
                    moments[observed.name] = Moments.of(columns)
                else:
                    squares[observed.name] = column_squares(columns)
            values |= {made.name: returned[made.name].copy() for made in piece.made}
        tell((i + 1) / len(observation.pieces))
    keys = {each.columns.name: _scaled(each, moments) for each in observation.keys}
    return Measured(squares, keys)


def _scaled(observed: ObservedKeys, moments: Mapping[str, Moments]) -> F32:
    columns, queries = observed.columns, [moments[name] for name in observed.queries]
    shape = columns.kv_heads, columns.head_dim
    return scale_keys(moments[observed.keys], queries, *shape, columns.centered)

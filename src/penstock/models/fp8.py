"""Checkpoints in FP8 (E4M3): DeepSeek's blocks, one scale a matrix, and FBGEMM's one a row."""

from __future__ import annotations

from typing import Final

from penstock.models.float_codes import IDLE, Fp8
from penstock.models.modules import EVERY, parts
from penstock.models.names import NameMap
from penstock.models.packed_matrix import EitherFormat, MatrixFormat
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader

METHOD: Final = "fp8"
FBGEMM: Final = "fbgemm_fp8"
_LISTS: Final = ("modules_to_not_convert", "ignored_layers")
_SCALE, _SCALE_INV = "weight_scale", "weight_scale_inv"
"""Tools call scales by either name, and multiply by them under both."""


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    config.only("fmt", "e4m3", "must be e4m3")
    config.only("expert_dtype", "fp8", "must be fp8")
    config.only("is_checkpoint_fp8_serialized", True, "must be true: weights are read as stored")
    for field in ("modules_to_convert",):
        if config.raw(field) not in (None, []):
            raise config.error(field, "is not supported; take a checkpoint without it")
    for field, known in (
        ("activation_scheme", ("dynamic", "static")),
        ("scale_fmt", ("float", "ue8m0")),
        ("kv_cache_scheme", ("static", "dynamic")),
    ):
        if config.has(field) and config.raw(field) not in known:
            raise config.error(field, f"must be {' or '.join(known)}")
    form: MatrixFormat
    if config.has("weight_block_size"):
        block = config.integers("weight_block_size", low=1)
        if len(block) != 2:
            raise config.error("weight_block_size", "must be two integers, rows and columns")
        tile = block[0], block[1]
        form = EitherFormat((Fp8(tile, _SCALE_INV), Fp8(tile, _SCALE)))
    else:
        config.raw("weight_block_size")
        whole = (None, None)
        form = EitherFormat((Fp8(whole, _SCALE), Fp8(whole, _SCALE_INV)))
    rules = (_skipped(config), Rule(EVERY, form))
    config.finish(("dequantize",))
    return QuantizedModules("FP8", rules, names, idle=IDLE)


def read_fbgemm(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Likewise, of FBGEMM's checkpoints."""
    rules = (_skipped(config), Rule(EVERY, Fp8((1, None), _SCALE)))
    config.finish(("activation_scale_ub",))  # bounds the scales of activations
    return QuantizedModules("FBGEMM", rules, names, idle=IDLE)


def _skipped(config: ConfigReader) -> Rule:
    """The modules that are left in floats. The output matrix always is."""
    each = [entry for field in _LISTS for entry in config.texts(field) or ()]
    return Rule(parts(each), None)

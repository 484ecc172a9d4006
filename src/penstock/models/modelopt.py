"""Checkpoints of NVIDIA's Model Optimizer in FP8, one scale a matrix, and in NVFP4."""

from __future__ import annotations

from typing import Final

from penstock.models.float_codes import IDLE, KV_SCALES_UNUSED, NVFP4_GROUP, Fp8, Nvfp4
from penstock.models.modules import EVERY, parts
from penstock.models.names import NameMap
from penstock.models.packed_matrix import MatrixFormat
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader

METHOD: Final = "modelopt"
_FORMS: Final[dict[str, MatrixFormat]] = {
    "FP8": Fp8((None, None), "weight_scale"),
    "NVFP4": Nvfp4("weight", "weight_scale_2"),
}
_LISTS: Final = ("ignore", "exclude_modules")
_CACHE: Final = ("kv_cache_scheme", "kv_cache_quant_algo")


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``, or the ``hf_quant_config.json`` that older checkpoints have for
    it; raises ModelError for what would be read wrongly."""
    section = config.section("quantization")
    own = config if section is None else section
    algorithm = own.text("quant_algo")
    if algorithm not in _FORMS:
        raise own.error("quant_algo", f"is not supported; supported are {', '.join(_FORMS)}")
    own.only("group_size", NVFP4_GROUP, f"must be {NVFP4_GROUP}")
    for field in ("has_zero_point", "pre_quant_scale"):
        own.only(field, False, "must be false")
    skipped = [entry for field in _LISTS for entry in own.texts(field) or ()]
    cached = any(own.raw(field) is not None for field in _CACHE)
    if section is not None:
        section.finish()
    config.finish(("producer", "config_groups", "quant_library"))
    rules = (Rule(parts(skipped), None), Rule(EVERY, _FORMS[algorithm]))
    notes = (KV_SCALES_UNUSED,) if cached else ()
    return QuantizedModules("Model Optimizer", rules, names, head=True, idle=IDLE, notes=notes)

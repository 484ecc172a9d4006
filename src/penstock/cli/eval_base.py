"""The base that a model is compared with: mostly the same model unrounded."""

from __future__ import annotations

import argparse
import typing
from pathlib import Path

import msgspec

from penstock.config import EngineConfig
from penstock.demo_model import demo_model_path
from penstock.dtypes import DTypeOption, KvCacheDTypeOption, QuantizationName
from penstock.errors import ConfigError


def add_base_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("base")
    group.add_argument("--base", metavar="MODEL", help="the base (default: MODEL)")
    group.add_argument(
        "--base-quantization",
        choices=typing.get_args(QuantizationName),
        default="none",
        help="its quantization (default: none)",
    )
    group.add_argument(
        "--base-dtype",
        choices=typing.get_args(DTypeOption),
        help="the type of its weights (default: as --dtype)",
    )
    group.add_argument(
        "--base-kv-cache-dtype",
        choices=typing.get_args(KvCacheDTypeOption),
        help="the type of its KV cache (default: as --kv-cache-dtype)",
    )


def base_config(config: EngineConfig, args: argparse.Namespace) -> EngineConfig:
    """The base's options: those of the model, but for what says how weights are rounded.

    Raises ConfigError where these are the same, and so is the model.
    """
    changes: dict[str, object] = {"quantization": args.base_quantization}
    if args.base_quantization == "none":
        defaults = EngineConfig()
        for name in (
            "quantization_group",
            "quantization_zero_points",
            "quantize_activations",
            "quantize_head",
            "quantization_calibration",
        ):
            changes[name] = getattr(defaults, name)
    if args.base is not None:
        changes["model"] = args.base
    if args.base_dtype is not None:
        changes["dtype"] = args.base_dtype
    if args.base_kv_cache_dtype is not None:
        changes["kv_cache_dtype"] = args.base_kv_cache_dtype
    base = msgspec.structs.replace(config, **changes)
    if msgspec.structs.replace(base, model=config.model) == config and _is_same(base, config):
        raise ConfigError(
            "the model would be compared with itself: name what to compare it with by --base MODEL "
            "(of a GGUF file, or of another quantized checkpoint, the one that it was made from), "
            "or give the model a --quantization"
        )
    return base


def _is_same(base: EngineConfig, config: EngineConfig) -> bool:
    """Whether both name one model."""
    if base.model == config.model:
        return True
    paths = [Path(each.model) if each.model else demo_model_path() for each in (base, config)]
    return all(path.exists() for path in paths) and paths[0].samefile(paths[1])

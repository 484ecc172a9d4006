"""What families with selective scans (Mamba 2) share: names of tensors, limits of time steps.

Steps of time are clamped to ``time_step_limit`` for all tokens alike, as the first implementations
(mamba_ssm) do. transformers 5 clamps those of prompts alone, and Nemotron-H's to
``time_step_min`` in the place of the lower limit.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.models.limits import MAX_FACTOR, MAX_HEADS, MAX_HEADS_WIDTH, MAX_HIDDEN
from penstock.models.name_forms import OneColumn
from penstock.models.names import Name, fused
from penstock.models.reader import ConfigReader
from penstock.models.spec import SelectiveSpec

SCAN: Final = "linear_attention"
"""What transformers calls a layer with a scan."""
MAX_TAPS: Final = 64
"""Most tokens that a convolution sees."""
MAX_STATE: Final = 2**16
"""Most numbers that are kept for each component of a head."""
MAMBA_FIELDS: Final = {
    "conv_bias": "mamba_conv_bias",
    "groups": "mamba_n_groups",
    "heads": "mamba_n_heads",
    "kernel": "mamba_d_conv",
    "projection_bias": "mamba_proj_bias",
    "state_size": "mamba_d_state",
}
"""What families call the fields of scans whose other layers attend."""
_FLOAT: Final = "__float__"
"""How transformers 5 writes numbers that JSON does not have."""


def scan_names(at: str) -> dict[str, Name]:
    """The names of the weights of selective scans whose tensors' names begin with ``at``."""
    own = {
        "a_log": Name(f"{at}.A_log", suffix=""),
        "dt_bias": Name(f"{at}.dt_bias", suffix=""),
        "d": Name(f"{at}.D", suffix=""),
        "conv": Name(f"{at}.conv1d", form=OneColumn()),
        "norm": Name(f"{at}.norm"),
        "o": Name(f"{at}.out_proj"),
    }
    rows = [f"layers.*.scan.{name}" for name in ("z", "xbc", "dt")]
    return fused(f"{at}.in_proj", *rows) | {f"layers.*.scan.{k}": v for k, v in own.items()}


def read_scan(config: ConfigReader, heads: int, head_dim: int, eps: float | None) -> SelectiveSpec:
    """A scan of so many heads. Its fields have the names of :class:`SelectiveSpec` but for
    ``state_size`` and ``projection_bias``."""
    groups = config.integer("groups", high=heads)
    if heads % groups:
        raise config.error("groups", f"must divide the {heads} heads evenly")
    bias = config.boolean("projection_bias", False)
    if heads > MAX_HEADS or heads * head_dim > MAX_HEADS_WIDTH:
        raise config.error(
            "heads", f"must be at most {MAX_HEADS}, and of at most {MAX_HEADS_WIDTH} components"
        )
    return SelectiveSpec(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=config.integer("state_size", high=MAX_STATE),
        kernel=config.integer("kernel", low=2, high=MAX_TAPS),
        eps=eps,
        conv_bias=config.boolean("conv_bias", True),
        bias=bias,
        output_bias=bias,
        dt_limits=read_time_steps(config),
    )


def read_expanded_scan(
    config: ConfigReader, eps: float | None, width: int | None = None
) -> SelectiveSpec:
    """A scan whose heads together are ``mamba_expand`` times as wide as the model, or of another
    ``width``."""
    heads = config.integer("heads", high=MAX_HEADS)
    expanded = config.integer("hidden_size", high=MAX_HIDDEN) * config.integer("mamba_expand", 2)
    whole = "mamba_expand times hidden_size" if width is None else "the width of the scan"
    width = width or expanded
    if width % heads:
        raise config.error("heads", f"must divide {whole} ({width})")
    if config.raw("mamba_d_head") != "auto":
        config.only("mamba_d_head", width // heads, f"must be {width // heads} or auto")
    return read_scan(config, heads, width // heads, eps)


def read_time_steps(config: ConfigReader) -> tuple[float, float]:
    """``time_step_limit``: what steps of time are clamped to, all from 0 on where it is absent."""
    name = "time_step_limit"
    limits = config.raw(name)
    if limits is None:
        return 0.0, math.inf
    ends = [_number(end) for end in limits] if isinstance(limits, list) else []
    if len(ends) != 2 or not 0 <= ends[0] <= ends[1] or ends[0] > MAX_FACTOR:
        raise config.error(name, "must be two numbers from 0 on, the lower one first")
    return ends[0], ends[1]


def _number(value: object) -> float:
    """Return NaN for what is none."""
    if value == {_FLOAT: "Infinity"}:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(min(value, math.inf))

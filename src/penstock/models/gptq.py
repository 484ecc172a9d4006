"""Checkpoints that GPTQ quantized: their configuration and their tensors.

A matrix ``[n, k]`` is stored as four tensors: ``qweight`` int32 ``[k * bits / 32, n]``, codes
packed along k; ``qzeros`` int32 ``[groups, n * bits / 32]``, zero points packed along n; ``scales``
``[groups, n]``; and ``g_idx`` int32 ``[k]``, the group of each column, which may be left out where
groups follow one another. The lowest bits hold what comes first. Its values are
``(code - zero) * scale``, where the first version of the format stores zero points less one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from penstock.errors import ModelError
from penstock.interface.sources import Shape, Stored
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import GROUP_SIZES, Bits, GroupScheme

METHOD: Final = "gptq"
_V1, _V2 = "gptq", "gptq_v2"
# fmt: off
_IDLE: Final = frozenset((
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs",
    "damp_auto_increment", "damp_percent", "dataset", "disable_exllama",
    "exllama_config", "hyb_act", "is_distributed", "max_input_length", "meta",
    "model_file_base_name", "model_name_or_path", "model_seqlen",
    "module_name_preceding_first_block", "mse", "pad_token_id", "tokenizer",
    "true_sequential", "use_cuda_fp16", "use_exllama",
))
# fmt: on
"""Fields that do not change what the stored codes stand for."""


@dataclass(frozen=True)
class Gptq:
    """How GPTQ's tensors of a checkpoint are to be read."""

    bits: Bits
    group_size: int | None
    symmetric: bool
    """Whether the code that stands for 0 is the middle one in every group."""
    zeros_less_one: bool
    """Whether zero points are stored less one: the first version of the format."""
    head: bool = False
    """Whether the output matrix is quantized, too."""
    any_order: bool = False
    """Whether a group's columns may lie anywhere in the matrix (``desc_act`` without
    ``static_groups``); ``g_idx`` tells."""

    def __str__(self) -> str:
        return f"GPTQ, {self.scheme}"

    @property
    def scheme(self) -> GroupScheme:
        """Symmetric codes of 8 bits use -128, which only schemes with zero points have."""
        zero_points = not (self.symmetric and self.bits == 4)
        return GroupScheme(self.bits, self.group_size, zero_points)

    @property
    def schemes(self) -> tuple[GroupScheme, ...]:
        return (self.scheme,)

    def matrix(self, name: str) -> Gptq | None:
        """The format itself where the matrix ``name`` is quantized. Tools leave out what chooses
        experts and what weighs them."""
        if name.endswith((".router", ".share")):
            return None
        return self if name.startswith("layers.") or (self.head and name == "head") else None

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError where it cannot have been packed."""
        n, k = shape
        together = 32 // self.bits
        if n % together or k % together:
            raise ModelError(
                f"{name} has {n} rows and {k} columns, which GPTQ's format does not pack: both "
                f"must be multiples of {together}; take config.json and weights from one checkpoint"
            )
        groups = self.scheme.groups(k)
        return (
            Stored(f"{name}.qweight", (k // together, n), "int32"),
            Stored(f"{name}.qzeros", (groups, n // together), "int32"),
            Stored(f"{name}.scales", (groups, n)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return (group_index(name),)


def group_index(name: str) -> str:
    """The tensor that says which group each column of matrix ``name`` is in."""
    return f"{name}.g_idx"


def read(config: ConfigReader) -> Gptq:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    bits = config.integer("bits")
    if bits not in (4, 8):
        raise config.error("bits", "is not supported; supported are 4 and 8")
    group = config.integer("group_size", 128, low=-1)
    if group != -1 and group not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise config.error("group_size", f"is not supported; supported are {sizes} and -1 (rows)")
    version = config.text("checkpoint_format", config.text("format", _V1))
    if version not in (_V1, _V2):
        raise config.error("checkpoint_format", f"is not supported; supported are {_V1} and {_V2}")
    if config.has("checkpoint_format") and config.text("format", version) != version:
        raise config.error("format", f"contradicts checkpoint_format {version!r}")
    for name in ("dynamic", "modules_in_block_to_quantize"):
        if config.raw(name) not in (None, {}, []):
            raise config.error(
                name,
                "is not supported: only checkpoints all of whose layers' matrices are quantized "
                "alike; quantize without it",
            )
    config.only("is_marlin_format", False, "must be false: Marlin's layout is not supported")
    config.only("pack_dtype", "int32", "must be int32")
    symmetric = config.boolean("sym", True)
    head = config.boolean("lm_head", False)
    # A matrix whose rows are one group each has no order of groups to tell.
    by_activation = config.boolean("desc_act", False)
    in_place = config.boolean("static_groups", False) or group == -1
    config.finish(_IDLE)
    return Gptq(
        bits=cast(Bits, bits),
        group_size=None if group == -1 else group,
        symmetric=symmetric,
        zeros_less_one=version == _V1,
        head=head,
        any_order=by_activation and not in_place,
    )

"""Checkpoints that AWQ quantized: their configuration and their tensors.

A matrix ``[n, k]`` is stored as three tensors: ``qweight`` int32 ``[k, n / 8]``, codes of 4 bits
packed along n; ``qzeros`` int32 ``[groups, n / 8]``, zero points packed likewise; and ``scales``
``[groups, n]``. The eight codes of a word, from the lowest bits on, are of its columns 0, 2, 4, 6,
1, 3, 5 and 7. Values are ``(code - zero) * scale``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.errors import ModelError
from penstock.interface.sources import Shape, Stored
from penstock.models.integer_groups import group_of, read_group, require_whole
from penstock.models.modules import EVERY, parts
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import GroupScheme

METHOD: Final = "awq"
_TOGETHER: Final = 8
_GEMM: Final = "gemm"
_IDLE: Final = frozenset(
    (
        "backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "meta", "modules_to_fuse",
        "damp_percent", "dataset", "desc_act", "act_group_aware", "true_sequential",
    )
)  # fmt: skip
"""Fields that do not change what the stored codes stand for."""


@dataclass(frozen=True)
class Awq:
    """How a matrix that AWQ quantized is to be read."""

    group_size: int | None
    zero_points: bool = True
    """Whether codes that stand for 0 differ between groups; else all are the middle one."""
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return str(self.scheme)

    @property
    def scheme(self) -> GroupScheme:
        return GroupScheme(4, group_of(self.group_size), self.zero_points)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError where it cannot have been packed."""
        n, k = shape
        if n % _TOGETHER:
            raise ModelError(
                f"{name} has {n} rows, which AWQ's format does not pack: they must be a multiple "
                f"of {_TOGETHER}; take config.json and weights from one checkpoint"
            )
        require_whole(name, k, self.group_size, "AWQ")
        groups = 1 if self.group_size is None else k // self.group_size
        return (
            Stored(f"{name}.qweight", (k, n // _TOGETHER), "int32"),
            Stored(f"{name}.qzeros", (groups, n // _TOGETHER), "int32"),
            Stored(f"{name}.scales", (groups, n)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    if config.integer("bits") != 4:
        raise config.error("bits", "is not supported: AWQ's layout is read in 4 bits")
    group = read_group(config, "group_size", 128)
    for field in ("version", "format", "checkpoint_format"):
        if config.has(field) and config.text(field).lower() != _GEMM:
            raise config.error(
                field, f"is not supported; supported is {_GEMM}, in which most checkpoints are"
            )
    zero_point = config.boolean("zero_point", not config.boolean("sym", False))
    if config.has("sym") and config.boolean("sym", False) is zero_point:
        raise config.error("sym", f"contradicts zero_point {str(zero_point).lower()}")
    config.only("pack_dtype", "int32", "must be int32")
    config.only("lm_head", False, "must be false: AWQ leaves the output matrix in floats")
    if config.raw("dynamic") not in (None, {}):
        raise config.error("dynamic", "is not supported with AWQ; quantize without it")
    rules = (
        Rule(parts(config.texts("modules_to_not_convert") or ()), None),
        Rule(EVERY, Awq(group, zero_point)),
    )
    config.finish(_IDLE)
    return QuantizedModules("AWQ", rules, names)

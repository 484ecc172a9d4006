"""Checkpoints of bitsandbytes: NF4 and FP4, with or without double quantization, and LLM.int8()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from penstock.interface.sources import Shape, Stored
from penstock.models.modules import EVERY, parts
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import GroupScheme

METHOD: Final = "bitsandbytes"
BLOCK: Final = 64
"""Values that share an absolute maximum."""
NESTED_BLOCK: Final = 256
"""Absolute maxima that share one, where they are rounded, too."""
_IDLE: Final = (
    "bnb_4bit_compute_dtype", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight",
    "llm_int8_threshold",
)  # fmt: skip
_INT8_LAYOUT: Final = r".*\.weight_format"


@dataclass(frozen=True)
class Bnb4:
    """Codes of a table, two a byte, the first in the high bits, in blocks of 64 values row after
    row, whose absolute maximum the table is multiplied by."""

    kind: Literal["nf4", "fp4"]
    nested: bool
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.kind.upper()

    def blocks(self, k: int) -> str | None:
        """The blocks that rows of ``k`` columns are made of; None where some begin in one row and
        end in the next."""
        return None if k % BLOCK else self.kind.upper()

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        n, k = shape
        blocks = -(-n * k // BLOCK)
        own = (
            Stored(f"{name}.weight", (-(-n * k // 2), 1), "uint8", loose=True),
            Stored(f"{name}.weight.absmax", (blocks,), "uint8" if self.nested else "float"),
            Stored(f"{name}.weight.quant_map", (16,)),
        )
        if not self.nested:
            return own
        return (
            *own,
            Stored(f"{name}.weight.nested_absmax", (-(-blocks // NESTED_BLOCK),)),
            Stored(f"{name}.weight.nested_quant_map", (256,)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return (self.state(name),)

    def state(self, name: str) -> str:
        """The tensor with what else there is to know of matrix ``name``, as JSON."""
        return f"{name}.weight.quant_state.bitsandbytes__{self.kind}"


@dataclass(frozen=True)
class Bnb8:
    """Codes int8 ``[n, k]``; ``SCB`` ``[n]`` has the magnitude that 127 stands for in each row."""

    scheme: ClassVar[GroupScheme] = GroupScheme(8, None)
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return str(self.scheme)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        return (Stored(f"{name}.weight", shape, "int8"), Stored(f"{name}.SCB", shape[:1]))

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    four, eight = (
        config.boolean(f"load_in_{bits}bit", False) or config.boolean(f"_load_in_{bits}bit", False)
        for bits in (4, 8)
    )
    if four == eight:
        raise config.error("load_in_4bit", "or load_in_8bit must be true, and not both")
    kind = config.text("bnb_4bit_quant_type", "fp4")
    nested = config.boolean("bnb_4bit_use_double_quant", False)
    config.only("bnb_4bit_quant_storage", "uint8", "must be uint8")
    skipped = config.texts("llm_int8_skip_modules")
    config.finish(_IDLE)
    form: Bnb4 | Bnb8 = Bnb8()
    if four:
        if kind not in ("nf4", "fp4"):
            raise config.error("bnb_4bit_quant_type", "must be nf4 or fp4")
        form = Bnb4("nf4" if kind == "nf4" else "fp4", nested)
    rules = (Rule(parts(skipped or ()), None), Rule(EVERY, form))
    # Where no modules are named, the output matrix alone is left out.
    return QuantizedModules(METHOD, rules, names, head=skipped is not None, idle=_INT8_LAYOUT)

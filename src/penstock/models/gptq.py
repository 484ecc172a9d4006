"""Checkpoints that GPTQ quantized: their configuration and their tensors.

A matrix ``[n, k]`` is stored as four tensors: ``qweight`` int32 ``[k * bits / 32, n]``, codes
packed along k; ``qzeros`` int32 ``[groups, n * bits / 32]``, zero points packed along n; ``scales``
``[groups, n]``; and ``g_idx`` int32 ``[k]``, the group of each column, which may be left out where
groups follow one another. The lowest bits hold what comes first. Its values are
``(code - zero) * scale``, where the first version of the format stores zero points less one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.errors import ModelError
from penstock.interface.sources import Shape, Stored
from penstock.models.integer_groups import (
    StoredBits,
    group_of,
    kept_bits,
    read_bits,
    read_group,
)
from penstock.models.modules import EVERY, Modules, beginning
from penstock.models.names import NameMap
from penstock.models.quantized_modules import QuantizedModules, Rule
from penstock.models.reader import ConfigReader
from penstock.quant.scheme import GroupScheme

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


_OF_MATRICES: Final = ("bits", "group_size", "sym", "desc_act", "static_groups")
"""Fields that ``dynamic`` may set for some modules."""


@dataclass(frozen=True)
class Gptq:
    """How a matrix that GPTQ quantized is to be read."""

    bits: StoredBits
    group_size: int | None
    symmetric: bool
    """Whether the code that stands for 0 is the middle one in every group."""
    zeros_less_one: bool
    """Whether zero points are stored less one: the first version of the format."""
    stacks: ClassVar[bool] = False
    any_order: bool = False
    """Whether a group's columns may lie anywhere in the matrix (``desc_act`` without
    ``static_groups``); ``g_idx`` tells."""

    def __str__(self) -> str:
        return str(self.scheme)

    @property
    def scheme(self) -> GroupScheme:
        """Symmetric codes of 8 bits use -128, which only schemes with zero points have."""
        zero_points = not self.symmetric or self.bits == 8
        return GroupScheme(kept_bits(self.bits), group_of(self.group_size), zero_points)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError where it cannot have been packed."""
        n, k = shape
        together = 32 // math.gcd(32, self.bits)
        if n % together or k % together:
            raise ModelError(
                f"{name} has {n} rows and {k} columns, which GPTQ's format does not pack: both "
                f"must be multiples of {together}; take config.json and weights from one checkpoint"
            )
        words_of_k, words_of_n = k * self.bits // 32, n * self.bits // 32
        groups = 1 if self.group_size is None else -(-k // self.group_size)
        return (
            Stored(f"{name}.qweight", (words_of_k, n), "int32"),
            Stored(f"{name}.qzeros", (groups, words_of_n), "int32"),
            Stored(f"{name}.scales", (groups, n)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return (group_index(name),)


def group_index(name: str) -> str:
    """The tensor that says which group each column of matrix ``name`` is in."""
    return f"{name}.g_idx"


def read(config: ConfigReader, names: NameMap) -> QuantizedModules:
    """Read ``quantization_config``; raises ModelError for what would be read wrongly."""
    version = config.text("checkpoint_format", config.text("format", _V1))
    if version not in (_V1, _V2):
        raise config.error("checkpoint_format", f"is not supported; supported are {_V1} and {_V2}")
    if config.has("checkpoint_format") and config.text("format", version) != version:
        raise config.error("format", f"contradicts checkpoint_format {version!r}")
    config.only("is_marlin_format", False, "must be false: Marlin's layout is not supported")
    config.only("pack_dtype", "int32", "must be int32")
    form = _form(config, version)
    rules = (*_dynamic(config, version), _of_blocks(config, form, names))
    head = config.boolean("lm_head", False)
    config.finish(_IDLE)
    return QuantizedModules("GPTQ", rules, names, head)


def _form(config: ConfigReader, version: str) -> Gptq:
    group = read_group(config, "group_size", 128)
    # A matrix whose rows are one group each has no order of groups to tell.
    by_activation = config.boolean("desc_act", False)
    in_place = config.boolean("static_groups", False) or group is None
    return Gptq(
        bits=read_bits(config, "bits"),
        group_size=group,
        symmetric=config.boolean("sym", True),
        zeros_less_one=version == _V1,
        any_order=by_activation and not in_place,
    )


def _dynamic(config: ConfigReader, version: str) -> list[Rule]:
    """What ``dynamic`` says: regular expressions that modules' names begin with, of which the first
    that does decides. Behind ``-:`` they are left in floats; else fields are set."""
    own = config.section("dynamic")
    if own is None:
        return []
    usual = {name: config.raw(name) for name in _OF_MATRICES if config.has(name)}
    rules = []
    for key in own.names:
        skipped, expression = key.startswith("-:"), re.sub(r"\A[-+]:", "", key)
        modules = Modules(patterns=(beginning(config, "dynamic", expression),))
        section = own.section(key)
        if section is None:
            raise own.error(key, "must be an object")
        if skipped:
            rules.append(Rule(modules, None))
            continue
        changed: Mapping[str, object] = usual | {name: section.raw(name) for name in section.names}
        reader = ConfigReader(changed, section.where)
        form = _form(reader, version)
        reader.finish(_IDLE)
        rules.append(Rule(modules, form))
    return rules


def _of_blocks(config: ConfigReader, form: Gptq, names: NameMap) -> Rule:
    """The modules of a layer that ``modules_in_block_to_quantize`` lists, in one list or several;
    where it lists none, all. The output matrix is in no layer."""
    listed = config.raw("modules_in_block_to_quantize")
    if listed in (None, []):
        return Rule(EVERY, form)
    lists = listed if isinstance(listed, list) else [listed]
    each = [name for some in lists for name in (some if isinstance(some, list) else [some])]
    names_inside = [re.escape(name) for name in each if isinstance(name, str) and name]
    if len(names_inside) < len(each):
        raise config.error("modules_in_block_to_quantize", "must be a list of lists of names")
    inside = re.compile(rf"\.\d+\.(?:{'|'.join(names_inside)})\Z")
    head = frozenset(filter(None, (names.module("head"),)))
    return Rule(Modules(head, (inside,)), form)

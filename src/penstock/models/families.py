"""All families of models, by the names of their modules, and what each module says of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Final

from penstock.models.names import NameMap
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

_NAMES: Final = (
    "apertus",
    "arcee",
    "baichuan",
    "bamba",
    "bloom",
    "chatglm",
    "cohere",
    "cohere2",
    "cwm",
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone",
    "exaone4",
    "falcon",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "helium",
    "hunyuan_v1_dense",
    "hyperclovax",
    "internlm2",
    "internlm3",
    "jais2",
    "lfm2",
    "lfm2_moe",
    "llama",
    "llama4",
    "mamba2",
    "minicpm",
    "minicpm3",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "nemotron_h",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "youtu",
)

MODULES: Final[tuple[ModuleType, ...]] = tuple(
    import_module(f"penstock.models.{name}") for name in _NAMES
)


@dataclass(frozen=True)
class Family:
    """One architecture: its name in ``architectures``, its ``model_type``, its reader, and what its
    checkpoints call the weights, where the reader does not say."""

    architecture: str
    model_type: str
    read: Callable[[ConfigReader, DType], ModelSpec]
    names: NameMap | None
    other_types: frozenset[str]
    """Further values of ``model_type`` that mean the same."""
    aliases: tuple[str, ...]
    """Other names that ``architectures`` may have for it."""
    idle: frozenset[str]
    """Fields that change nothing in this family, whatever their value."""
    text_parts: Mapping[str, Mapping[str, object]]
    """Values of ``model_type`` of parts of larger models that the family computes, and what
    transformers assumes of each where it leaves sizes out, as the published ones do that
    transformers wrote itself."""

    @classmethod
    def of(cls, module: ModuleType) -> Family:
        """What the module of a family says."""
        return cls(
            module.ARCHITECTURE,
            module.MODEL_TYPE,
            module.read,
            getattr(module, "NAMES", None),
            getattr(module, "OTHER_MODEL_TYPES", frozenset()),
            getattr(module, "ALIASES", ()),
            getattr(module, "IDLE", frozenset()),
            getattr(module, "TEXT_PARTS", {}),
        )

    @property
    def all_types(self) -> frozenset[str]:
        """All values of ``model_type`` of what the family computes, parts of larger models too."""
        return self.other_types.union((self.model_type,), self.text_parts)


FAMILIES: Final[Mapping[str, Family]] = {
    name: family
    for family in map(Family.of, MODULES)
    for name in (family.architecture, *family.aliases)
}
"""Every family under each of the names that ``architectures`` may have for it."""


def family_of_type(model_type: object) -> Family | None:
    """The family that computes what is of this ``model_type``; None if there is none."""
    if not isinstance(model_type, str):
        return None
    return next((each for each in FAMILIES.values() if model_type in each.all_types), None)

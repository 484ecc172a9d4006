"""All families of models, by the names of their modules, and what each module says of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Final

from penstock.models.names import NameMap
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

_MODULES: Final[Mapping[str, str]] = {
    "ApertusForCausalLM": "apertus",
    "ArceeForCausalLM": "arcee",
    "BaichuanForCausalLM": "baichuan",
    "BaiChuanForCausalLM": "baichuan",
    "BambaForCausalLM": "bamba",
    "BloomForCausalLM": "bloom",
    "ChatGLMModel": "chatglm",
    "ChatGLMForConditionalGeneration": "chatglm",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "CwmForCausalLM": "cwm",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Dots1ForCausalLM": "dots1",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "ExaoneForCausalLM": "exaone",
    "Exaone4ForCausalLM": "exaone4",
    "FalconForCausalLM": "falcon",
    "FalconH1ForCausalLM": "falcon_h1",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma4ForCausalLM": "gemma4_text",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTNeoXForCausalLM": "gpt_neox",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "HeliumForCausalLM": "helium",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense",
    "HyperCLOVAXForCausalLM": "hyperclovax",
    "InternLM2ForCausalLM": "internlm2",
    "InternLM3ForCausalLM": "internlm3",
    "Jais2ForCausalLM": "jais2",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe",
    "LlamaForCausalLM": "llama",
    "Llama4ForCausalLM": "llama4",
    "Mamba2ForCausalLM": "mamba2",
    "MiniCPMForCausalLM": "minicpm",
    "MiniCPM3ForCausalLM": "minicpm3",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "MinistralForCausalLM": "ministral",
    "Ministral3ForCausalLM": "ministral3",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "MptForCausalLM": "mpt",
    "MPTForCausalLM": "mpt",
    "NemotronForCausalLM": "nemotron",
    "NemotronHForCausalLM": "nemotron_h",
    "OlmoForCausalLM": "olmo",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe",
    "OPTForCausalLM": "opt",
    "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3",
    "PhimoeForCausalLM": "phimoe",
    "PhiMoEForCausalLM": "phimoe",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "YoutuForCausalLM": "youtu",
}
"""The module of each architecture, by each of the names that ``architectures`` may have for it."""


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


class _Families(Mapping[str, Family]):
    """Families, whose modules are imported as they are asked for: a start needs one of them."""

    def __getitem__(self, architecture: str) -> Family:
        return Family.of(import_module(f"penstock.models.{_MODULES[architecture]}"))

    def __contains__(self, architecture: object) -> bool:
        return architecture in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


FAMILIES: Final[Mapping[str, Family]] = _Families()
"""Every family under each of the names that ``architectures`` may have for it."""


def family_modules() -> tuple[ModuleType, ...]:
    """The modules of all families, by their names."""
    return tuple(import_module(f"penstock.models.{name}") for name in sorted({*_MODULES.values()}))


def family_of_type(model_type: object) -> Family | None:
    """The family that computes what is of this ``model_type``; None if there is none."""
    if not isinstance(model_type, str):
        return None
    # Most modules are called as the type: where one is, no other need be imported.
    likely = [name for name, module in _MODULES.items() if module == model_type]
    families = (FAMILIES[name] for name in (*likely, *_MODULES))
    return next((each for each in families if model_type in each.all_types), None)
